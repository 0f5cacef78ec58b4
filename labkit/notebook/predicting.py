"""Sliders over a prediction: the step in its parts, memory against the GPU's, efficiency as nodes are added."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from labkit.hardware import topology
from labkit.plots import palette
from labkit.predict import MODELS, Plan, Prediction, model, predict, scaling
from labkit.trace import Category, Kind

KINDS = {
    "compute": palette.KIND[Kind.COMPUTE],
    "communication": palette.KIND[Kind.COLLECTIVE],
    "bubble": palette.IDLE,
    "optimizer": palette.MEMORY[Category.OPTIMIZER],
    "waiting": palette.MEMORY[Category.OTHER],
    "data": palette.KIND[Kind.RECEIVE],
}
HELD = {
    "parameters": palette.MEMORY[Category.PARAMETER],
    "gradients": palette.MEMORY[Category.GRADIENT],
    "optimizer": palette.MEMORY[Category.OPTIMIZER],
    "activations": palette.MEMORY[Category.ACTIVATION],
    "buffers": palette.MEMORY[Category.COMMUNICATION],
    "reserved": palette.MEMORY[Category.OTHER],
}
CLUSTERS = ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-1", "p4d", "p5")


def explore(name: str = "gpt-13b", cluster: str = "dgx-a100", nodes: int = 4) -> Any:
    """A widget: change model, cluster and layout, and see what becomes of the step; an impossible layout says why."""
    import ipywidgets  # type: ignore[import-untyped]

    style = {"description_width": "initial"}
    powers = [1 << power for power in range(8)]

    def choice(label: str, options: Any, value: Any) -> Any:
        return ipywidgets.SelectionSlider(options=options, value=value, description=label, style=style)

    controls = {
        "model": ipywidgets.Dropdown(options=list(MODELS), value=name, description="model", style=style),
        "cluster": ipywidgets.Dropdown(options=CLUSTERS, value=cluster, description="cluster", style=style),
        "nodes": choice("nodes", [1 << power for power in range(12)], nodes),
        "tensor": choice("tensor", powers[:4], 1),
        "pipeline": choice("pipeline", powers[:7], 1),
        "microbatch": choice("microbatch", powers[:6], 1),
        "microbatches": choice("microbatches", powers, 8),
        "zero": choice("ZeRO", [0, 1, 2, 3], 1),
        "recompute": choice("recompute", ["none", "selective", "full"], "none"),
    }
    shown = ipywidgets.HTML()

    def redraw(_: Any = None) -> None:
        shown.value = page({name: control.value for name, control in controls.items()})

    for control in controls.values():
        control.observe(redraw, names="value")
    redraw()
    return ipywidgets.HBox([ipywidgets.VBox(list(controls.values())), shown])


def page(chosen: Mapping[str, Any]) -> str:
    """The prediction for these values as HTML; for what cannot be, the constraint."""
    node = topology(chosen["cluster"])
    cluster = replace(node, nnodes=chosen["nodes"])
    layout = chosen["tensor"] * chosen["pipeline"]
    if cluster.world_size % layout:
        return _refused(f"tensor x pipeline = {layout} must divide {cluster.world_size} GPUs")
    data = cluster.world_size // layout
    try:
        plan = Plan(
            batch=chosen["microbatch"] * chosen["microbatches"] * data, microbatch=chosen["microbatch"], data=data,
            tensor=chosen["tensor"], pipeline=chosen["pipeline"], zero=chosen["zero"], recompute=chosen["recompute"],
            sequence_parallel=chosen["tensor"] > 1,
        )  # fmt: skip
        made = predict(model(chosen["model"]), plan, cluster)
        steps = [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count * node.nproc_per_node % layout == 0]
        curve = scaling(model(chosen["model"]), plan, node, steps, weak=True) if steps else []
    except ValueError as error:
        return _refused(str(error))
    kinds = {kind: made.seconds(kind) for kind in KINDS}
    unit = "tokens" if made.model.units_per_sample > 1 else "images"
    head = (
        f"{made.step_seconds:.3g} s a step of {plan.batch} samples on {plan.ranks} GPUs, "
        f"{made.tokens_per_second:,.0f} {unit}/s, MFU {made.mfu():.1%}"
    )
    return "".join(
        (
            f"<div style='width:560px'><b>{html.escape(head)}</b>",
            _bar("step time (s)", kinds, KINDS, made.step_seconds, "s"),
            _memory(made),
            _efficiency([(point.gpus, point.efficiency) for point in curve]),
            "</div>",
        )
    )


def _memory(made: Prediction) -> str:
    held = {name: nbytes / 1e9 for name, nbytes in made.memory.categories().items()}
    limit = made.cluster.gpu.memory_gb
    label = f"memory (GB) of {limit:g}" + ("" if made.fits else ": does not fit")
    return _bar(label, held, HELD, max(limit, sum(held.values())), "GB", limit)


def _bar(
    label: str, parts: Mapping[str, float], colours: Mapping[str, str], whole: float, unit: str, limit: float = 0.0
) -> str:
    """One stacked bar with its legend; a line at `limit`."""
    pieces, legend, at = [], [], 0.0
    for name, value in parts.items():
        if value <= 0:
            continue
        width = 560 * value / whole
        pieces.append(f"<rect x='{at:.1f}' width='{width:.1f}' height='24' fill='{colours[name]}' stroke='#FFF'/>")
        legend.append(f"<span style='color:{colours[name]}'>&#9632;</span> {name} {value:.3g} {unit}")
        at += width
    if limit:
        place = min(559.0, 560 * limit / whole)
        pieces.append(f"<line x1='{place:.1f}' x2='{place:.1f}' y2='28' stroke='{palette.CAPACITY}' stroke-width='3'/>")
    said = html.escape(", ".join(f"{name} {value:.3g} {unit}" for name, value in parts.items() if value > 0))
    return (
        f"<p>{html.escape(label)}</p>"
        f"<svg width='560' height='28' role='img' aria-label='{said}'>{''.join(pieces)}</svg>"
        f"<div style='line-height:1.4'>{' &nbsp; '.join(legend)}</div>"
    )


def _efficiency(points: list[tuple[int, float]]) -> str:
    if len(points) < 2:
        return ""
    width, height = 500, 90
    marks = [
        (30 + width * index / (len(points) - 1), 10 + height * (1 - min(1.0, share)))
        for index, (_, share) in enumerate(points)
    ]
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in marks)
    names = "".join(
        f"<text x='{x:.0f}' y='{height + 26}' font-size='10' text-anchor='middle'>{gpus}</text>"
        for (x, _), (gpus, _) in zip(marks, points, strict=True)
    )
    said = ", ".join(f"{share:.0%} at {gpus}" for gpus, share in points)
    return (
        f"<p>weak scaling efficiency over GPUs, from 0 to 1: {said}</p>"
        f"<svg width='560' height='{height + 32}' role='img' aria-label='{said}'>"
        f"<polyline points='{line}' fill='none' stroke='{palette.SERIES[0]}' stroke-width='2'/>"
        f"<line x1='30' x2='530' y1='{height + 10}' y2='{height + 10}' stroke='#999'/>{names}</svg>"
    )


def _refused(why: str) -> str:
    return f"<div style='width:560px;color:{palette.WRONG}'>Not possible: {html.escape(why)}</div>"
