"""Two consecutive matrices cut over ranks, the first by columns, the second by rows, and each rank's results."""

from __future__ import annotations

from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.plots import palette
from labkit.plots.picture import Picture, plain
from labkit.units import count

_TOKENS, _WIDTH, _INNER = 3, 4, 8
_GAP = 1.7
_DARK = 0.5
"""Position in the colour map below which text is white."""


class _Matrix(NamedTuple):
    label: str
    height: int
    width: int
    along: int | None
    """Dimension that is cut; None: whole, on every rank."""


def matrix_cuts(ranks: int, title: str = "") -> Picture:
    """Draw y = (x A) B on `ranks` ranks, 1 to 8; parts without a number are whole and on every rank.

    Matrices are drawn with inputs down and outputs across, as nn.Linear multiplies by them; the eight columns of A are
    distributed as evenly as possible. Raises ValueError for other numbers of ranks.
    """
    if not 1 <= ranks <= _INNER:
        raise ValueError(f"ranks must be from 1 to {_INNER}, got {ranks}")
    picture = Picture(height=2.75, alt=_describe(ranks, title))
    axes = picture.add_subplot()
    axes.set_title(title or f"Two matrices on {count(ranks, 'rank')}", loc="left", fontsize=11)
    matrices = [
        _Matrix("x\neverywhere", _TOKENS, _WIDTH, None),
        _Matrix("A\nby columns", _WIDTH, _INNER, 1),
        _Matrix("x A\nby columns", _TOKENS, _INNER, 1),
        _Matrix("B\nby rows", _INNER, _WIDTH, 0),
        _Matrix(f"y, the sum\nof {count(ranks, 'product')}", _TOKENS, _WIDTH, None),
    ]
    left = 0.0
    for matrix, sign in zip(matrices, ("·", "=", "·", "=", ""), strict=True):
        _draw(axes, matrix, left, ranks)
        left += matrix.width
        axes.text(left + _GAP / 2, 0, sign, ha="center", va="center", fontsize=14)
        left += _GAP
    axes.set_xlim(-0.2, left - _GAP + 0.2)
    axes.set_ylim(_INNER / 2 + 2.1, -_INNER / 2 - 0.2)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    plain(axes)
    return picture


def _draw(axes: Axes, matrix: _Matrix, left: float, ranks: int) -> None:
    top = -matrix.height / 2
    axes.text(left + matrix.width / 2, -top + 0.3, matrix.label, ha="center", va="top", fontsize=9)
    if matrix.along is None:
        axes.add_patch(Rectangle((left, top), matrix.width, matrix.height, facecolor=palette.IDLE, edgecolor="white"))
        return
    colours = matplotlib.colormaps[palette.ORDER]
    for rank in range(ranks):
        begin, end = _INNER * rank // ranks, _INNER * (rank + 1) // ranks
        place = rank / max(ranks - 1, 1)
        x, y = (left + begin, top) if matrix.along == 1 else (left, top + begin)
        width, height = (end - begin, matrix.height) if matrix.along == 1 else (matrix.width, end - begin)
        axes.add_patch(Rectangle((x, y), width, height, facecolor=colours(place), edgecolor="white", linewidth=1.5))
        ink = palette.LIGHT_TEXT if place < _DARK else palette.DARK_TEXT
        axes.text(x + width / 2, y + height / 2, str(rank), ha="center", va="center", color=ink, fontsize=9)


def _describe(ranks: int, title: str) -> str:
    what = title or f"Two matrices on {count(ranks, 'rank')}"
    shares = [f"rank {r} has {_INNER * (r + 1) // ranks - _INNER * r // ranks}" for r in range(ranks)]
    return (
        f"{what}: y is x times A times B. x is on every rank; of the "
        f"{_INNER} columns of A, and so of x A, and of the {_INNER} rows of B {', '.join(shares)}. Each rank's part of "
        "x A times its part of B is a whole y in shape; y is their sum."
    )
