"""Samples of each rank, step by step: a grid for each way of distributing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.plots import palette
from labkit.plots.picture import WIDTH, Picture
from labkit.units import count

_CELL = 0.33
"""Size of a cell in inches; other distances are in cells."""
_LEFT, _ABOVE, _BELOW = 1.5, 0.8, 1.3
"""Room around a grid for its axis labels and its heading."""
_PER_LETTER = 0.22
"""Width of a letter of a heading."""
_DARK = 0.5
"""Position in the colour map below which text is white."""

Grid = Sequence[Sequence[int | None]]


def shards(grids: Mapping[str, Grid], dataset_size: int, title: str = "") -> Picture:
    """Draw `grids[heading][rank][step]`, the indices of samples, side by side while there is room, then in a new line.

    None is an empty cell: a step that the rank did not reach. The colour is a sample's position in the data set, from 0
    (dark) to the last (bright): neighbours look alike. Cells have the same size in all pictures, unless a rank has more
    than twenty samples: then they are as small as they must be.
    """
    line = max([WIDTH / _CELL, *(_LEFT + len(share) for grid in grids.values() for share in grid)])
    corners, bottom = _corners(grids, line)
    picture = Picture(height=_CELL * bottom + 0.1 + 0.3 * bool(title), alt=_describe(grids, title))
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11)
    axes = picture.add_subplot()
    axes.set_axis_off()
    axes.set_aspect("equal", anchor="NW")
    axes.set_xlim(0, line)
    axes.set_ylim(bottom, 0)
    for (heading, grid), corner in zip(grids.items(), corners, strict=True):
        _draw(axes, heading, grid, corner, dataset_size)
    return picture


def _corners(grids: Mapping[str, Grid], line: float) -> tuple[list[tuple[float, float]], float]:
    """Return each grid's first cell, as (left, top), and the bottom of the last line."""
    corners = []
    left, top, bottom = 0.0, 0.0, 0.0
    for heading, grid in grids.items():
        width = _LEFT + max([_PER_LETTER * len(heading), *map(len, grid)])
        if left and left + width > line:
            left, top = 0.0, bottom
        corners.append((left + _LEFT, top + _ABOVE))
        left += width
        bottom = max(bottom, top + _ABOVE + len(grid) + _BELOW)
    return corners, bottom


def _draw(axes: Axes, heading: str, grid: Grid, corner: tuple[float, float], dataset_size: int) -> None:
    colours = matplotlib.colormaps[palette.ORDER]
    left, top = corner
    axes.text(left, top - 0.2, heading, va="bottom", fontsize=9.5)
    for rank, share in enumerate(grid):
        for step, sample in enumerate(share):
            cell = (left + step + 0.03, top + rank + 0.03)
            if sample is None:
                outline: dict[str, Any] = {"facecolor": "none", "edgecolor": palette.OUTLINE, "linewidth": 0.8}
                axes.add_patch(Rectangle(cell, 0.94, 0.94, **outline))
                continue
            place = sample / max(dataset_size - 1, 1)
            axes.add_patch(Rectangle(cell, 0.94, 0.94, color=colours(place), linewidth=0))
            ink = palette.LIGHT_TEXT if place < _DARK else palette.DARK_TEXT
            middle = (left + step + 0.5, top + rank + 0.5)
            axes.text(*middle, str(sample), ha="center", va="center", color=ink, fontsize=8.5)
    steps = max(map(len, grid), default=0)
    label: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
    for rank in range(len(grid)):
        axes.text(left - 0.35, top + rank + 0.5, str(rank), **label)
    for step in range(steps):
        axes.text(left + step + 0.5, top + len(grid) + 0.35, str(step), **label)
    axes.text(left - 0.95, top + len(grid) / 2, "rank", rotation=90, **label)
    axes.text(left + steps / 2, top + len(grid) + 0.95, "step", **label)


def _describe(grids: Mapping[str, Sequence[Sequence[int | None]]], title: str) -> str:
    texts = [f"{title or 'Samples of each rank'}: {count(len(grids), 'grid')} of ranks by steps"]
    for heading, grid in grids.items():
        shares = [
            f"rank {rank} has {' '.join('-' if sample is None else str(sample) for sample in share)}"
            for rank, share in enumerate(grid)
        ]
        texts.append(f"{heading}: {'; '.join(shares)}")
    return ". ".join(texts) + "."
