"""Curves in panels, one below the other, over one x axis: runs to be compared, or a cause above its effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.plots.curve import Curve, describe, draw, labels_of, legend
from labkit.plots.picture import Picture
from labkit.units import count

_MARK_SIZE = 4.0
"""Size of marks in points: panels are for curves of many points, such as the steps of a training run."""


@dataclass(frozen=True)
class Panel:
    """One panel. `y` is the label of its axis, unit included; a `logarithmic` axis does not begin at 0."""

    curves: Sequence[Curve]
    y: str
    heading: str = ""
    logarithmic: bool = False
    height: float = 1.75
    """Height in inches."""


def curve_panels(panels: Sequence[Panel], x: str, title: str = "") -> Picture:
    """Draw `panels` over a common x axis, whose label is `x`.

    Panels with the same `y` have the same limits, so that their curves can be compared. A label has the same colour and
    mark in all panels. Raises `ValueError` without panels, and if a curve's x and y differ in length.
    """
    if not panels:
        raise ValueError("panels must have one to draw, got none")
    series = [curve for panel in panels for curve in panel.curves]
    labels = labels_of(series)
    heights = [panel.height for panel in panels]
    picture = Picture(height=sum(heights) + 0.8, alt=_describe(panels, x, title))
    picture.suptitle(title, fontsize=11, x=0.01, ha="left")
    subplots = picture.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, panel in zip(subplots[:, 0], panels, strict=True):
        draw(axes, panel.curves, labels, panel.logarithmic, _MARK_SIZE)
        axes.set_title(panel.heading, loc="left", fontsize=9.5)
        axes.set_ylabel(panel.y)
        if not panel.logarithmic:
            axes.set_ylim(bottom=0)
    for y in {panel.y for panel in panels}:
        alike = [axes for axes, panel in zip(subplots[:, 0], panels, strict=True) if panel.y == y]
        lowest, highest = min(axes.get_ylim()[0] for axes in alike), max(axes.get_ylim()[1] for axes in alike)
        for axes in alike:
            axes.set_ylim(lowest, highest)
    subplots[-1, 0].set_xlabel(x)
    picture.align_ylabels()
    picture.legend(handles=legend(series, labels), loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _describe(panels: Sequence[Panel], x: str, title: str) -> str:
    texts = [f"{panel.heading or panel.y}, {describe(panel.curves)}." for panel in panels]
    return f"{title or 'Curves'}: {count(len(panels), 'panel')} over {x}. {' '.join(texts)}"
