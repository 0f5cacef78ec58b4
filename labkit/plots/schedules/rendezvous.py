"""Rendezvous of ranks: from processes that know one address to a process group, step by step."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Arc, FancyArrowPatch, Rectangle

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Kind
from labkit.units import count

MOST_RANKS = 6
LAST = 4
"""The step after which the group is ready."""
_STORE = 1.75
"""Height of the store's box, above the ranks' at 0."""
_TITLES = (
    "Started: each knows its number, and where to meet",
    "Rank 0 opens the store at MASTER_ADDR:MASTER_PORT",
    "Each writes into it where it can be reached",
    "Each reads where the others are",
    "Connected: a process group; the store is out of the way",
)


def rendezvous(world_size: int, step: int) -> Picture:
    """Draw `world_size` ranks after `step` steps of their rendezvous, 0 to 4.

    0: processes know their own rank and one address; 1: rank 0 has opened the store there; 2: all write their
    addresses into it; 3: all read the others'; 4: all are connected. Raises `ValueError` for any other step, or for a
    number of ranks other than 2 to 6.
    """
    if not 2 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size must be 2 to {MOST_RANKS}, got {world_size}")
    if not 0 <= step <= LAST:
        raise ValueError(f"step must be 0 to {LAST}, got {step}")
    picture = Picture(height=3.5, alt=_describe(world_size, step))
    axes = picture.add_subplot()
    axes.set_title(f"Step {step} of {LAST} · {_TITLES[step]}", loc="left", fontsize=11)
    axes.set_xlim(-0.6, world_size - 0.4)
    axes.set_ylim(-1.25, 2.35)
    axes.set_axis_off()
    middle = (world_size - 1) / 2
    if step:
        _store(axes, world_size, step, middle)
    for rank in range(world_size):
        _rank(axes, world_size, rank, step)
        if step in (2, 3):
            _arrow(axes, rank, middle + (rank - middle) * 0.35, reads=step == 3)
    if step == LAST:
        for one in range(world_size):
            for other in range(one + 1, world_size):
                _connection(axes, one, other)
    return picture


def _store(axes: Axes, world_size: int, step: int, middle: float) -> None:
    known = ", ".join(map(str, range(world_size)))
    said = "empty" if step == 1 else f"addresses of ranks {known}"
    half = 0.32 * world_size
    axes.add_patch(
        Rectangle((middle - half, _STORE - 0.3), 2 * half, 0.6, facecolor="white", edgecolor="black", linewidth=1.2)
    )
    axes.text(middle, _STORE, f"store, kept by rank 0\n{said}", ha="center", va="center", fontsize=9)


def _rank(axes: Axes, world_size: int, rank: int, step: int) -> None:
    axes.add_patch(Rectangle((rank - 0.42, -0.42), 0.84, 0.84, facecolor=palette.IDLE, edgecolor="none"))
    knows = "knows itself" if step < 3 else f"knows all {world_size}"
    axes.text(rank, 0.14, f"rank {rank} of {world_size}", ha="center", va="center", fontsize=9)
    axes.text(rank, -0.16, knows, ha="center", va="center", fontsize=8)


def _arrow(axes: Axes, rank: int, store_x: float, reads: bool) -> None:
    ends = ((rank, 0.44), (store_x, _STORE - 0.32))
    colour = palette.KIND[Kind.RECEIVE if reads else Kind.SEND]
    start, end = ends[::-1] if reads else ends
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=12, color=colour, linewidth=1.8, shrinkA=0, shrinkB=0
        )
    )


def _connection(axes: Axes, one: int, other: int) -> None:
    width = other - one
    axes.add_patch(
        Arc(
            ((one + other) / 2, -0.42), width, 0.42 + 0.4 * (width - 1) ** 0.7 if width > 1 else 0.42,
            theta1=180, theta2=360, color=palette.KIND[Kind.COLLECTIVE], linewidth=1.8,
        )
    )  # fmt: skip


def _describe(world_size: int, step: int) -> str:
    happens = (
        "Each process knows its own number and the address to meet at.",
        "Rank 0 has opened a store at that address; it is empty.",
        "Every rank sends its address to the store.",
        "Every rank reads all addresses from the store.",
        "Every rank is connected to every other one, and the store is not needed.",
    )
    return f"Rendezvous of {count(world_size, 'rank')}, step {step} of {LAST}. {happens[step]}"
