"""Curves that compare methods over ranks or sizes; modelled and measured points are never drawn alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.units import size

MOST_TICKS = 10
"""Maximum number of x values with a tick of their own."""


@dataclass(frozen=True)
class Curve:
    """One method's points. `clock` is their origin, as in `Trace.clock`; a `formula` is drawn as a line only."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    clock: Literal["modelled", "measured", "formula"] = "modelled"


def curves(
    series: Sequence[Curve],
    x: str,
    y: str,
    title: str = "",
    log: Literal["", "x", "y", "xy"] = "x",
    nbytes: bool = False,
    mark: float | None = None,
) -> Picture:
    """Draw `series` over common axes; `x` and `y` are the axes' labels, units included.

    Curves with the same label have the same colour: a method's modelled points (hollow, dashed) and its measured ones
    (filled, solid) belong together. Where curves coincide, earlier ones are drawn larger and show around the later
    ones. log: which axes are logarithmic, to base 2 for x. nbytes: write x as kB, MB.
    mark: the reader's prediction, drawn as a line across; None if there is none.
    Raises `ValueError` if a curve's x and y differ in length.
    """
    labels = labels_of(series)
    predicted = "" if mark is None else f" Your prediction: {mark:.3g}."
    picture = Picture(height=3.6, alt=_describe(series, x, y, title) + predicted)
    axes = picture.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if "x" in log:
        axes.set_xscale("log", base=2)
    draw(axes, series, labels, logarithmic="y" in log)
    if mark is not None and (mark > 0 or "y" not in log):
        axes.axhline(mark, color="black", linestyle=(0, (7, 3)), linewidth=1)
        across = axes.get_yaxis_transform()
        axes.text(0.01, mark, "your prediction", fontsize=9, verticalalignment="bottom", transform=across)
    points = _ticks(series, logarithmic="x" in log)
    if points:
        axes.set_xticks(points, [size(p) if nbytes else f"{p:g}" for p in points])
        axes.minorticks_off()
    if "y" not in log:
        axes.set_ylim(bottom=0)
    picture.legend(handles=legend(series, labels), loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _ticks(series: Sequence[Curve], logarithmic: bool) -> list[float]:
    """Return the x values that get a tick, or none, where matplotlib chooses them.

    They are all points, or, where a formula is drawn through many, those of the other curves. If these end before the
    formula does, they are each second or third point of all, so that the whole axis has ticks.
    """
    drawn = sorted({value for curve in series for value in curve.x})
    points = sorted({value for curve in series if curve.clock != "formula" for value in curve.x})
    if len(drawn) <= MOST_TICKS:
        return drawn
    if points and (points[0], points[-1]) == (drawn[0], drawn[-1]):
        return points if len(points) <= MOST_TICKS else []
    return drawn[:: -(-len(drawn) // MOST_TICKS)] if logarithmic else []


def labels_of(series: Sequence[Curve]) -> list[str]:
    """Return each label once, in order: its position determines the colour and the mark of its curves.

    Raises `ValueError` if a curve's x and y differ in length.
    """
    for curve in series:
        if len(curve.x) != len(curve.y):
            raise ValueError(f"curve {curve.label!r} has {len(curve.x)} x and {len(curve.y)} y")
    return list(dict.fromkeys(curve.label for curve in series))


def draw(
    axes: Axes, series: Sequence[Curve], labels: Sequence[str], logarithmic: bool = False, mark_size: float = 6
) -> None:
    """Draw `series` and the lines of a grid; `logarithmic` is the y axis. `mark_size`: in points.

    Marks at 0 are whole: the axis does not cut them.
    """
    if logarithmic:
        axes.set_yscale("log")
    for curve, hidden in zip(series, _hidden_by(series, logarithmic), strict=True):
        colour = palette.SERIES[labels.index(curve.label) % len(palette.SERIES)]
        line = {"modelled": "--", "measured": "-", "formula": ":"}[curve.clock]
        marker = "" if curve.clock == "formula" else "os^Dv"[labels.index(curve.label) % 5]
        face = colour if curve.clock == "measured" else "white"
        axes.plot(
            curve.x, curve.y, line, marker=marker, color=colour, markerfacecolor=face, label=curve.label,
            linewidth=1.4 + 1.8 * hidden, markersize=mark_size + 4 * hidden, clip_on=False,
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=palette.GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _hidden_by(series: Sequence[Curve], logarithmic: bool) -> list[int]:
    """For each curve, the number of later ones with points that coincide, within a fiftieth of the picture's height."""

    def height(y: float) -> float:
        return math.log(y) if logarithmic and y > 0 else y

    values = [height(y) for curve in series for y in curve.y]
    near = 0.02 * (max(values) - min(values if logarithmic else [0.0, *values])) if values else 0.0

    def same(a: Curve, b: Curve) -> bool:
        shared = dict(zip(b.x, b.y, strict=True))
        pairs = [(y, shared[x]) for x, y in zip(a.x, a.y, strict=True) if x in shared]
        return (
            len(pairs) > 1
            and len(pairs) == len(a.x)
            and all(abs(height(y) - height(other)) <= near for y, other in pairs)
        )

    pointed = [curve.clock != "formula" for curve in series]
    return [
        sum(pointed[at] and pointed[later] and same(series[at], series[later]) for later in range(at + 1, len(series)))
        for at in range(len(series))
    ]


def legend(series: Sequence[Curve], labels: Sequence[str]) -> list[Line2D]:
    """Legend entries: each method's colour and mark, then the meaning of hollow, filled and dotted."""
    handles = []
    beside_points = False
    for index, label in enumerate(labels):
        of_label = {curve.clock for curve in series if curve.label == label}
        only_formula = of_label == {"formula"}
        beside_points |= "formula" in of_label and not only_formula
        marker = "" if only_formula else "os^Dv"[index % 5]
        colour = palette.SERIES[index % len(palette.SERIES)]
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle=":" if only_formula else "", label=label))
    clocks = {curve.clock for curve in series}
    if "measured" in clocks:
        handles.append(Line2D([], [], color="black", marker="o", linestyle="-", label="measured"))
    if "modelled" in clocks:
        handles.append(
            Line2D([], [], color="black", marker="o", linestyle="--", markerfacecolor="white", label="modelled")
        )
    if beside_points:
        handles.append(Line2D([], [], color="black", linestyle=":", label="formula"))
    return handles


def describe(series: Sequence[Curve]) -> str:
    """Name both ends of each curve."""
    return "; ".join(
        f"{curve.label}, {curve.clock}: {curve.y[0]:.3g} at {curve.x[0]:g} to {curve.y[-1]:.3g} at {curve.x[-1]:g}"
        for curve in series
        if len(curve.x)
    )


def _describe(series: Sequence[Curve], x: str, y: str, title: str) -> str:
    names = ", ".join(dict.fromkeys(f"{curve.label} ({curve.clock})" for curve in series))
    return f"{title or y}, over {x}: {names}. {describe(series)}."
