"""Grid of the chunks of a result that are wrong, by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from labkit.clusters.rank_lists import ranges
from labkit.plots import palette
from labkit.plots.picture import WIDTH, Picture, plain, rank_ticks
from labkit.units import count

MOST_CHUNKS_WITH_MARKS = 24


def chunk_grid(wrong: Sequence[Sequence[bool]], title: str = "") -> Picture:
    """Draw `wrong[rank][chunk]`: a column per chunk, wrong ones in colour and with a cross.

    Neighbouring ranks with the same chunks wrong share a row.
    """
    by_rank = np.array(wrong, dtype=bool).reshape(len(wrong), -1)
    alike = _alike(by_rank)
    grid = by_rank[[first for first, _ in alike]]
    rows, chunks = grid.shape
    marks = max(rows, chunks) <= MOST_CHUNKS_WITH_MARKS
    height = min(max(0.34 * rows + 1.3, 2.0), 5.6)
    title = title or "Which chunks are wrong"
    # square cells if they are marked, otherwise full width; never narrower than the title
    width = max((height - 0.9) * chunks / rows + 1.7, 0.09 * len(title) + 1, 3.2) if marks else WIDTH
    picture = Picture(height, min(width, WIDTH), alt=_describe(by_rank))
    axes = picture.add_subplot()
    axes.set_anchor("W")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("chunk")
    axes.set_ylabel("rank")
    # the image has the wrong cells only: unlike the background, it keeps its colours on a dark page
    axes.set_facecolor(palette.RIGHT)
    axes.imshow(
        np.ma.masked_equal(grid, False),
        cmap=ListedColormap([palette.WRONG]),
        vmin=0,
        vmax=1,
        aspect="equal" if marks else "auto",
    )
    if rows == len(by_rank):
        rank_ticks(axes, rows)
    else:
        axes.set_yticks(range(rows), [ranges(range(first, end)) for first, end in alike])
    rank_ticks(axes, chunks, on=("x",))
    plain(axes)
    if marks:
        axes.set_xticks(np.arange(chunks + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=2)
        axes.tick_params(which="minor", length=0)
        for row, chunk in np.argwhere(grid):
            axes.text(
                chunk, row, "x", ha="center", va="center", color=palette.LIGHT_TEXT, fontsize=11, fontweight="bold"
            )
    legend = [Patch(color=palette.RIGHT, label="right"), Patch(color=palette.WRONG, label="wrong")]
    axes.legend(handles=legend, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    return picture


def _alike(grid: np.ndarray[Any, np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Runs of equal rows, as (first, end)."""
    starts = [rank for rank in range(len(grid)) if rank == 0 or (grid[rank] != grid[rank - 1]).any()]
    return list(zip(starts, [*starts[1:], len(grid)], strict=True))


def _describe(grid: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> str:
    ranks, chunks = grid.shape
    text = f"Grid of {count(ranks, 'rank')} by {count(chunks, 'chunk')}: {int(grid.sum())} of {grid.size} are wrong"
    rows = [f"rank {rank}: chunks {ranges(np.flatnonzero(row).tolist())}" for rank, row in enumerate(grid) if row.any()]
    return f"{text}. " + "; ".join([*rows[:16], "..."] if len(rows) > 16 else rows)
