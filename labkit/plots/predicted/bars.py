"""Horizontal stacked bars, one per prediction, with room for long names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.plots import palette
from labkit.plots.picture import Picture

HEIGHT = 0.62
"""Height of a bar; the distance to the next one is 1."""


@dataclass(frozen=True)
class Part:
    """One layer of all bars. Parts of one colour differ by their hatch."""

    name: str
    colour: str
    hatch: str = ""

    @property
    def edge(self) -> str:
        """Edge colour: a light part needs an outline on a white page."""
        return palette.FAINT if self.colour == palette.IDLE else "white"


def stacked(rows: Mapping[str, Mapping[str, float]], parts: Sequence[Part], alt: str) -> tuple[Picture, Axes]:
    """Draw a bar for each of `rows`, the first on top, stacked by part in the order of `parts`."""
    names = [name.count("\n") + 1 for name in rows]
    height = max(0.34 * len(rows) + 0.13 * sum(names) + 1.1, 0.2 * len(parts) + 0.9)
    picture = Picture(height, alt=alt)
    axes = picture.add_subplot()
    for place, values in enumerate(rows.values()):
        left = 0.0
        for part in parts:
            width = values.get(part.name, 0.0)
            if width > 0:
                axes.barh(place, width, HEIGHT, left, color=part.colour, hatch=part.hatch, edgecolor=part.edge, lw=0.6)
                left += width
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=palette.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    return picture, axes


def swatches(parts: Sequence[Part]) -> list[Patch]:
    """Legend entries of the parts."""
    return [Patch(facecolor=p.colour, hatch=p.hatch, edgecolor=p.edge, linewidth=0.6, label=p.name) for p in parts]
