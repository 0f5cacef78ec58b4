"""Samples of each rank, step by step: a grid for each way of distributing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.plots import palette
from labkit.plots.picture import WIDTH, Picture, plain
from labkit.units import count

_CELL = 0.3
"""Size of a cell in inches."""
_DARK = 0.5
"""Position in the colour map below which text is white."""


def shards(grids: Mapping[str, Sequence[Sequence[int | None]]], dataset_size: int, title: str = "") -> Picture:
    """Draw `grids[heading][rank][step]`, the indices of samples, one grid below the other. None leaves a cell empty.

    The colour is a sample's position in the data set, from 0 (dark) to the last (bright): neighbours look alike. A line
    has room for about twenty samples per rank.
    """
    rows = [len(grid) for grid in grids.values()]
    columns = max((len(share) for grid in grids.values() for share in grid), default=0) or 1
    picture = Picture(
        height=sum(_CELL * ranks + 0.62 for ranks in rows) + 0.25 + 0.3 * bool(title),
        width=min(max(_CELL * columns + 1.1, 0.085 * max(map(len, [*grids, title])) + 1), WIDTH),
        alt=_describe(grids, title),
    )
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=11)
    subplots = picture.subplots(len(rows), 1, squeeze=False, gridspec_kw={"height_ratios": rows})
    for axes, (heading, grid) in zip(subplots[:, 0], grids.items(), strict=True):
        _draw(axes, heading, grid, columns, dataset_size)
    subplots[-1, 0].set_xlabel("step")
    return picture


def _draw(axes: Axes, heading: str, grid: Sequence[Sequence[int | None]], columns: int, dataset_size: int) -> None:
    colours = matplotlib.colormaps[palette.ORDER]
    axes.set_title(heading, loc="left", fontsize=9.5)
    axes.set_ylabel("rank")
    for rank, share in enumerate(grid):
        for step, sample in enumerate(share):
            if sample is None:
                continue
            place = sample / max(dataset_size - 1, 1)
            axes.add_patch(Rectangle((step - 0.47, rank - 0.47), 0.94, 0.94, color=colours(place), linewidth=0))
            ink = palette.LIGHT_TEXT if place < _DARK else palette.DARK_TEXT
            axes.text(step, rank, str(sample), ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_aspect("equal", anchor="W")
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(len(grid) - 0.5, -0.5)
    axes.set_xticks(range(columns), [str(step) for step in range(columns)], fontsize=8)
    axes.set_yticks(range(len(grid)), [str(rank) for rank in range(len(grid))], fontsize=8)
    plain(axes)


def _describe(grids: Mapping[str, Sequence[Sequence[int | None]]], title: str) -> str:
    texts = [f"{title or 'Samples of each rank'}: {count(len(grids), 'grid')} of ranks by steps"]
    for heading, grid in grids.items():
        shares = [
            f"rank {rank} has {' '.join('-' if sample is None else str(sample) for sample in share)}"
            for rank, share in enumerate(grid)
        ]
        texts.append(f"{heading}: {'; '.join(shares)}")
    return ". ".join(texts) + "."
