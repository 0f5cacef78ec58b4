"""Sliders for a prediction: the parts of a step, memory compared with the GPU's, efficiency as GPUs are added."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from labkit.hardware import PRESETS, topology
from labkit.plots import palette
from labkit.plots.predicted.live import WIDTH, live
from labkit.predict import MODELS, Plan, Prediction, model, predict, scaling
from labkit.predict.running import ScalingPoint
from labkit.predict.spread import COVERAGE
from labkit.units import duration

_NODES = [1 << power for power in range(12)]


def explore(name: str = "gpt-13b", cluster: str = "dgx-a100", nodes: int = 4) -> Any:
    """Return a widget: change model, cluster, layout and plan, and see the effect on the step.

    An impossible layout is explained in words, and the picture of the last possible one stays, faded. Raises ValueError
    for a model, a cluster or a number of nodes that the sliders do not have.
    """
    import ipywidgets  # type: ignore[import-untyped]

    if nodes not in _NODES:
        raise ValueError(f"nodes must be a power of two up to {_NODES[-1]}, got {nodes}")
    model(name), topology(cluster)  # raises for unknown names, with suggestions
    place = ipywidgets.Layout(width="360px")
    style = {"description_width": "100px"}
    powers = [1 << power for power in range(9)]

    def choice(label: str, options: Any, value: Any) -> Any:
        return ipywidgets.SelectionSlider(options=options, value=value, description=label, style=style, layout=place)

    def among(label: str, options: Any, value: Any) -> Any:
        return ipywidgets.Dropdown(options=options, value=value, description=label, style=style, layout=place)

    controls = {
        "model": among("model", list(dict.fromkeys([*MODELS, name])), name),
        "cluster": among("cluster", list(PRESETS), cluster),
        "nodes": choice("nodes", _NODES, nodes),
        "microbatch": choice("microbatch", powers[:7], 1),
        "tensor": choice("tensor", powers[:4], 1),
        "microbatches": choice("microbatches", powers, 8),
        "pipeline": choice("pipeline", powers[:7], 1),
        "recompute": choice("recompute", ["none", "selective", "full"], "none"),
        "zero": choice("ZeRO", [0, 1, 2, 3], 3),
        "precision": choice("precision", ["fp32", "tf32", "fp16", "bf16", "fp8"], "bf16"),
    }
    shown = ipywidgets.HTML(layout=ipywidgets.Layout(width=f"{WIDTH}px", max_width="100%"))
    last: list[Answer] = []

    def redraw(_: Any = None) -> None:
        try:
            answer = ask({name: control.value for name, control in controls.items()})
        except ValueError as error:
            shown.value = _refused(str(error), last) + "".join(live(*one, faded=True) for one in last)
            return
        last[:] = [answer]
        shown.value = _headline(answer.made) + live(*answer)

    for control in controls.values():
        control.observe(redraw, names="value")
    redraw()
    grid = ipywidgets.Layout(grid_template_columns="repeat(auto-fit, 370px)", width=f"{WIDTH}px", max_width="100%")
    return ipywidgets.VBox([ipywidgets.GridBox(list(controls.values()), layout=grid), shown])


class Answer(NamedTuple):
    """Data to draw for one position of the sliders."""

    made: Prediction
    studies: dict[str, list[ScalingPoint]]


def ask(chosen: Mapping[str, Any]) -> Answer:
    """Return the prediction for these values, and its scaling to other numbers of nodes.

    Raises ValueError naming the violated constraint.
    """
    node = topology(chosen["cluster"])
    cluster = replace(node, nnodes=chosen["nodes"])
    layout = chosen["tensor"] * chosen["pipeline"]
    if cluster.world_size % layout:
        raise ValueError(
            f"tensor x pipeline = {chosen['tensor']} x {chosen['pipeline']} = {layout} must divide "
            f"{cluster.world_size} GPUs"
        )
    data = cluster.world_size // layout
    samples = chosen["microbatch"] * chosen["microbatches"]
    plan = Plan(
        batch=samples * data, microbatch=chosen["microbatch"], data=data, tensor=chosen["tensor"],
        pipeline=chosen["pipeline"], zero=chosen["zero"], recompute=chosen["recompute"],
        precision=chosen["precision"], sequence_parallel=chosen["tensor"] > 1,
    )  # fmt: skip
    described = model(chosen["model"])
    made = predict(described, plan, cluster)
    counts = [count for count in _NODES[:11] if count * node.nproc_per_node % layout == 0]
    weak = scaling(described, plan, node, counts, weak=True)
    # the batch is constant: with more nodes, some ranks would have no sample
    last = chosen["nodes"] * samples
    strong = scaling(described, plan, node, [count for count in counts if count <= last], weak=False)
    return Answer(made, {"batch grows": weak, "batch stays": strong})


def _headline(made: Prediction) -> str:
    plan, unit, likely = made.plan, "tokens" if made.model.units_per_sample > 1 else "samples", made.step_range
    words = (
        f"{duration(made.step_seconds)} a step of {plan.batch:,} samples on {plan.ranks:,} GPUs "
        f"(data {plan.data} x tensor {plan.tensor} x pipeline {plan.pipeline}): "
        f"{made.tokens_per_second:,.0f} {unit}/s, MFU {made.mfu():.1%}, predicted. "
        f"{COVERAGE:.0%} of measured steps take {duration(likely.low)} to {duration(likely.high)}"
    )
    if not made.fits:
        words += ". It does not fit into memory, so such a step cannot run"
    return _line(f"<b>{html.escape(words)}</b>", palette.STEP["compute"] if made.fits else palette.WRONG)


def _refused(why: str, last: list[Answer]) -> str:
    words = f"<b>Not possible:</b> {html.escape(why)}."
    if last:
        plan = last[0].made.plan
        words += f" Below, the last possible: {plan.ranks:,} GPUs, tensor {plan.tensor}, pipeline {plan.pipeline}."
    return _line(words, palette.WRONG)


def _line(words: str, colour: str) -> str:
    look = f"max-width:{WIDTH}px;min-height:2.8em;box-sizing:border-box;line-height:1.4;padding:4px 8px"
    return f"<div role='status' style='{look};background:#FFF;color:#222;border-left:5px solid {colour}'>{words}</div>"
