"""Predicted efficiency as GPUs are added, and its cost in time and money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from labkit.plots import palette
from labkit.plots.picture import Picture

if TYPE_CHECKING:
    from labkit.predict.running import ScalingPoint

MARKS = "os^Dv"


def predicted_scaling(
    studies: Mapping[str, Sequence[ScalingPoint]],
    samples: float,
    dollars_per_gpu_hour: float | None = None,
    title: str = "",
) -> Picture:
    """Draw efficiency over GPUs, and beside it the cost of a run of `samples` over its hours.

    studies: points of `labkit.predict.scaling`, by name. Without a price the cost is in GPU hours. Raises ValueError
    without points, and if samples or price are not above 0.
    """
    if not any(studies.values()):
        raise ValueError("studies must have points to draw, got none")
    if samples <= 0 or (dollars_per_gpu_hour is not None and dollars_per_gpu_hour <= 0):
        raise ValueError(f"samples and a price must be above 0, got {samples} and {dollars_per_gpu_hour}")
    picture = Picture(height=3.5, alt=_describe(studies, samples, dollars_per_gpu_hour, title))
    left, right = picture.subplots(1, 2)
    picture.suptitle(f"{title or 'As GPUs are added'} · predicted", fontsize=11, x=0.01, ha="left")
    for index, (name, points) in enumerate(studies.items()):
        colour = palette.SERIES[index % len(palette.SERIES)]
        look = {"color": colour, "marker": MARKS[index % len(MARKS)], "markerfacecolor": "white", "linewidth": 1.4}
        gpus = [point.gpus for point in points]
        left.plot(gpus, [100 * point.efficiency for point in points], "--", label=name, **look)
        hours, cost = zip(*(_cost(point, samples, dollars_per_gpu_hour) for point in points), strict=True)
        right.plot(hours, cost, "--", **look)
        named = [index == 0, len(points) > 1]  # curves share their first point: name it once
        for at, named_too in zip((0, -1), named, strict=True):
            if named_too:
                right.annotate(
                    f"{gpus[at]} GPUs", (hours[at], cost[at]), (0, 7 if index % 2 else -14), ha="center",
                    textcoords="offset points", fontsize=8.5,
                )  # fmt: skip
    places = sorted({point.gpus for points in studies.values() for point in points})
    left.set_xscale("log", base=2)
    left.set_xticks(places[:: -(-len(places) // 8)], [str(place) for place in places[:: -(-len(places) // 8)]])
    left.minorticks_off()
    left.set_ylim(0, 106)
    left.set_xlabel("GPUs")
    left.set_ylabel("scaling efficiency (%)")
    right.set_xlabel(f"hours for {samples:,.0f} samples")
    right.set_ylabel("dollars" if dollars_per_gpu_hour else "GPU hours")
    right.set_xscale("log")
    right.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.xaxis.set_minor_formatter(NullFormatter())
    right.margins(x=0.16)
    right.set_ylim(0, 1.15 * right.dataLim.y1)
    for axes in (left, right):
        _plain(axes)
    left.legend(loc="lower left", frameon=False, fontsize=9)
    return picture


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=palette.GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _cost(point: ScalingPoint, samples: float, price: float | None) -> tuple[float, float]:
    """Return hours, and dollars or GPU hours."""
    hours = samples / point.samples_per_second / 3600
    return hours, hours * point.gpus * (price or 1.0)


def _describe(studies: Mapping[str, Sequence[ScalingPoint]], samples: float, price: float | None, title: str) -> str:
    unit = "dollars" if price else "GPU hours"
    sentences = []
    for name, points in studies.items():
        parts = []
        for point in points:
            hours, cost = _cost(point, samples, price)
            parts.append(f"{point.efficiency:.0%} with {point.gpus} GPUs, {hours:,.3g} hours, {cost:,.0f} {unit}")
        sentences.append(f"{name}: {'; '.join(parts)}")
    names = ", ".join(studies)
    return f"{title or 'As GPUs are added'}: efficiency and cost of {names}, predicted. {'. '.join(sentences)}."
