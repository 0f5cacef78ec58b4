"""Efficiency and throughput over GPUs; real, virtual and predicted points are never drawn alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from labkit.plots.curve import Curve, draw, labels_of, legend
from labkit.plots.picture import Picture

if TYPE_CHECKING:
    from labkit.course.phase4_production.scaling_study.given import Origin, ScalingPoint

_CLOCKS: dict[Origin, Literal["modelled", "measured", "formula"]] = {
    "real": "measured", "virtual": "modelled", "predict": "formula",
}  # fmt: skip
_NAMES = {"measured": "real ranks", "modelled": "virtual ranks", "formula": "predicted"}


def scaling_study(points: Sequence[ScalingPoint], title: str = "") -> Picture:
    """Draw efficiency over GPUs, and beside it samples per second, both axes logarithmic, with the ideal line.

    A strategy and batch has one colour: its real points are filled, its virtual ones hollow, predictions a dotted line.
    Raises ValueError without points.
    """
    if not points:
        raise ValueError("points must have one to draw, got none")
    curves: dict[tuple[str, str], list[ScalingPoint]] = {}
    for point in points:
        curves.setdefault((_label(point, points), point.measurement.origin), []).append(point)
    efficiency, throughput = (
        [
            Curve(
                label,
                [point.measurement.world_size for point in own],
                [value(point) for point in own],
                _CLOCKS[own[0].measurement.origin],
            )
            for (label, _), own in curves.items()
        ]
        for value in (_percent, _rate)
    )
    labels = labels_of(efficiency)
    picture = Picture(height=3.9, alt=_describe(efficiency, title))
    picture.suptitle(title or "Efficiency and throughput as GPUs are added", fontsize=11, x=0.01, ha="left")
    left, right = picture.subplots(1, 2)
    draw(left, efficiency, labels)
    draw(right, throughput, labels, logarithmic=True)
    gpus = sorted({point.measurement.world_size for point in points})
    first = throughput[0]
    ideal = [first.y[0] * n / first.x[0] for n in (gpus[0], gpus[-1])]
    right.plot([gpus[0], gpus[-1]], ideal, color="black", linewidth=0.8, zorder=0)
    right.annotate("ideal", (gpus[-1], ideal[-1]), (-4, 2), textcoords="offset points", ha="right", fontsize=8.5)
    shown = gpus[:: -(-len(gpus) // 6)]
    for axes, label in ((left, "efficiency (%)"), (right, "samples/s, all GPUs")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(shown, [str(n) for n in shown])
        axes.tick_params(axis="x", which="minor", bottom=False)
        axes.set_xlabel("GPUs")
        axes.set_ylabel(label)
    highest = max(100.0, *(y for curve in efficiency for y in curve.y))  # a first point may be slow: caches, other load
    left.set_ylim(0, 1.06 * highest)
    handles = legend(efficiency, labels)
    for handle in handles[len(labels) :]:
        handle.set_label(_NAMES.get(str(handle.get_label()), str(handle.get_label())))
    picture.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
    return picture


def _label(point: ScalingPoint, points: Sequence[ScalingPoint]) -> str:
    """Return strategy, kind of scaling and batch: what is the same for all points is left out."""
    own = _parts(point)
    differ = [len({_parts(other)[place] for other in points}) > 1 for place in range(len(own))]
    return ", ".join(part for part, named in zip(own, differ, strict=True) if named) or own[0] or "measured"


def _parts(point: ScalingPoint) -> tuple[str, ...]:
    of = point.measurement
    batch = of.batch_size if point.scaling == "weak" else of.world_size * of.batch_size
    return of.strategy, of.model, f"{point.scaling} scaling", f"batch {batch}"


def _percent(point: ScalingPoint) -> float:
    return 100 * point.efficiency


def _rate(point: ScalingPoint) -> float:
    of = point.measurement
    return of.world_size * of.batch_size / of.seconds


def _describe(efficiency: Sequence[Curve], title: str) -> str:
    names = ", ".join(f"{curve.label} ({_NAMES[curve.clock]})" for curve in efficiency)
    texts = "; ".join(
        f"{curve.label}, {_NAMES[curve.clock]}: "
        + ", ".join(f"{y:.0f} % with {x:g}" for x, y in zip(curve.x, curve.y, strict=True))
        for curve in efficiency
    )
    return f"{title or 'Efficiency and throughput as GPUs are added'}: {names}. Efficiency: {texts}."
