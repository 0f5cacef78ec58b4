"""Predict each layout from closed forms, and take the fastest that fits; what makes nodes unequal is left out."""

from __future__ import annotations

from itertools import product
from typing import Any

from labkit.hardware import topology
from labkit.predict import Plan, Transformer, predict

SPARE = 1.05
"""Memory that a layout may need in truth, as a multiple of what the formulas say."""


def plan(training: dict[str, Any]) -> dict[str, Any]:
    cluster, batch = topology(**training["options"]), training["batch"]
    sizes = {name: training[name] for name in ("layers", "width", "heads", "vocab", "sequence")}
    model, found = Transformer("gpt", **sizes, tied=True), []
    for pipeline, tensor, microbatch, recompute in product((1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8), ("none", "full")):
        data, rest = divmod(cluster.world_size, pipeline * tensor)
        if rest or batch % (max(1, data) * microbatch):
            continue
        layout: dict[str, Any] = {"data": data, "pipeline": pipeline, "tensor": tensor, "microbatch": microbatch}
        layout |= {"zero": 1, "recompute": recompute}
        step = predict(model, Plan(batch=batch, overlap=False, fusion="none", **layout), cluster)
        if SPARE * step.memory.total <= cluster.gpu.memory_gb * 1e9:
            found.append((step.step_seconds, layout))
    return min(found, key=lambda one: one[0])[1]
