"""Whose parts are in the chunks of a sum over ranks: missing, there, too often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from labkit.clusters.rank_lists import named_ranks
from labkit.plots import palette
from labkit.plots.picture import WIDTH, Picture, plain

Chunk = tuple[tuple[int, ...] | None, tuple[int, ...]]
"""How often each rank's part is in the chunk, by rank, and how often it should be; None: it is no sum of parts."""

_CELL = 0.3
"""Size of a cell in inches."""
_BESIDE, _BELOW = 0.55, 0.75
"""Inches around a grid: its labels, and the gap to the next one."""


class _Look(NamedTuple):
    """Appearance of a cell."""

    face: str
    edge: str
    ink: str
    weight: str
    legend: str


# the number is how often the part is there: readable without colour
_MISSING = _Look("white", palette.WRONG, "black", "bold", "0: missing")
_THERE = _Look(palette.RIGHT, palette.RIGHT, palette.NOTE, "normal", "1: there")
_TOO_OFTEN = _Look(palette.WRONG, palette.WRONG, palette.DARK_TEXT, "bold", "2 or more: too often")
_FOREIGN = _TOO_OFTEN._replace(legend="+: does not belong there")
_UNREADABLE = _Look("white", palette.OUTLINE, palette.NOTE, "normal", "?: no sum of these parts")
_LEGEND = (_MISSING, _THERE, _TOO_OFTEN, _FOREIGN, _UNREADABLE)


class _Grid(NamedTuple):
    heading: str
    label: str
    """Label of the columns."""
    columns: Sequence[str]
    chunks: Sequence[Chunk]


def part_grids(results: Mapping[int, Sequence[Chunk]], said: str, title: str = "") -> Picture:
    """Draw whose parts are in the sums of these ranks: a row for each part, a column for each chunk.

    Ranks with the same sum share a grid. Sums that are not cut into chunks are the columns of one grid, by rank.
    said: the same in words, for the alternative text.
    """
    if all(len(chunks) == 1 for chunks in results.values()):
        subject, grids = "whose part is in which result", [_by_rank(results)]
    else:
        subject, grids = "whose part is in which chunk", _by_chunk(results)
    ranks = max(len(wanted) for grid in grids for _, wanted in grid.chunks)
    broad = _CELL * max(len(grid.columns) for grid in grids) + _BESIDE
    across = min(len(grids), max(1, int((WIDTH - 0.3) / broad)))
    down = ceil(len(grids) / across)
    shown = {look for grid in grids for chunk in grid.chunks for look in _looks(chunk)}
    legend = [look for look in _LEGEND if look in shown]
    title = f"{subject.capitalize()} · {title}" if title else subject.capitalize()
    width = max(across * broad + 0.3, 0.08 * len(title) + 0.4, 1.7 * len(legend))
    picture = Picture(
        height=down * (_CELL * ranks + _BELOW) + 0.7,
        width=min(width, WIDTH),
        alt=f"Grid of {subject}. {said[:1].upper()}{'; '.join(said[1:].splitlines())}.",
    )
    picture.suptitle(title, x=0.01, ha="left", fontsize=11)
    subplots = picture.subplots(down, across, squeeze=False, gridspec_kw={"wspace": 0.1}).ravel()
    for number, (axes, grid) in enumerate(zip(subplots, grids, strict=False)):
        _draw(axes, grid, ranks)
        if number % across == 0:
            axes.set_ylabel("part of rank")
    for axes in subplots[len(grids) :]:
        axes.remove()
    handles = [Patch(facecolor=look.face, edgecolor=look.edge, linewidth=1.5, label=look.legend) for look in legend]
    picture.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=9)
    return picture


def _by_rank(results: Mapping[int, Sequence[Chunk]]) -> _Grid:
    return _Grid("", "result of rank", [str(rank) for rank in results], [chunks[0] for chunks in results.values()])


def _by_chunk(results: Mapping[int, Sequence[Chunk]]) -> list[_Grid]:
    alike: dict[tuple[Chunk, ...], list[int]] = {}
    for rank, chunks in results.items():
        alike.setdefault(tuple(chunks), []).append(rank)
    grids = []
    for same_chunks, ranks in alike.items():
        heading = f"on {named_ranks(ranks)}"
        grids.append(_Grid(heading, "chunk", [str(chunk) for chunk in range(len(same_chunks))], same_chunks))
    return grids


def _draw(axes: Axes, grid: _Grid, ranks: int) -> None:
    axes.set_title(grid.heading, loc="left", fontsize=9.5)
    axes.set_xlabel(grid.label)
    for column, chunk in enumerate(grid.chunks):
        for rank, look in enumerate(_looks(chunk)):
            if look is None:
                continue
            place = (column - 0.42, rank - 0.42)
            axes.add_patch(Rectangle(place, 0.84, 0.84, facecolor=look.face, edgecolor=look.edge, linewidth=1.5))
            number = "?" if chunk[0] is None else f"{'+' * (look is _FOREIGN)}{chunk[0][rank]}"
            axes.text(
                column, rank, number, ha="center", va="center", color=look.ink, fontsize=9, fontweight=look.weight
            )
    axes.set_aspect("equal", anchor="NW")
    axes.set_xlim(-0.5, len(grid.columns) - 0.5)
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_xticks(range(len(grid.columns)), grid.columns, fontsize=9)
    axes.set_yticks(range(ranks), [str(rank) for rank in range(ranks)], fontsize=9)
    plain(axes)


def _looks(chunk: Chunk) -> list[_Look | None]:
    """Return the look of each rank's part; None where it does not belong and is not there."""
    seen, wanted = chunk
    if seen is None:
        return [_UNREADABLE if due else None for due in wanted]
    return [_look(count, due) for count, due in zip(seen, wanted, strict=True)]


def _look(count: int, due: int) -> _Look | None:
    if count == due:
        return _THERE if due else None
    if count < due:
        return _MISSING
    return _TOO_OFTEN if due else _FOREIGN
