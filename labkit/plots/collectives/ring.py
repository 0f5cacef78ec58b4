"""A ring all-reduce, round by round: the chunks of each rank, and what it sends next."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Kind
from labkit.units import count

MOST_RANKS = 12
_WIDTH = 0.62
"""Share of a rank's column used by its chunks; the rest is for arrows."""


def ring_rounds(world_size: int, round: int) -> Picture:
    """Draw the chunks of every rank after `round` rounds, and what it sends to its right neighbour in the next one.

    A column per rank, a row per chunk; `0+1` is the sum of the inputs of ranks 0 and 1, `5/8` the sum over five of
    eight ranks. Rounds 0 to N-2 are the reduce-scatter, N-1 to 2N-3 the all-gather; at 2(N-1) all is done. Raises
    `ValueError` for a nonexistent round, and for more than 12 ranks, which do not fit into a picture.
    """
    n = world_size
    if not 1 <= n <= MOST_RANKS:
        raise ValueError(f"world_size must be 1 to {MOST_RANKS}, got {n}")
    if not 0 <= round <= 2 * (n - 1):
        raise ValueError(f"round must be 0 to {2 * (n - 1)} for {n} ranks, got {round}")
    held, sending = state(n, round), sends(n, round)

    picture = Picture(height=min(max(0.4 * n + 1.4, 2.6), 5.4), alt=_describe(n, round))
    axes = picture.add_subplot()
    axes.set_title(_title(n, round), loc="left", fontsize=11)
    axes.set_xlim(-0.75, n - 0.1)
    axes.set_ylim(n - 0.4, -1.0)
    axes.set_axis_off()
    for rank in range(n):
        axes.text(rank, -0.72, f"rank {rank}", ha="center", va="center", fontsize=9)
        for chunk in range(n):
            _cell(axes, n, rank, chunk, held[rank][chunk], sending.get(rank) == chunk)
    for chunk in range(n):
        axes.text(-0.45, chunk, f"chunk {chunk}", ha="right", va="center", fontsize=9)
    for rank, chunk in sending.items():
        _arrow(axes, rank, chunk, last=rank == n - 1)
    legend = [
        Patch(color=palette.shade(0.15), label="part of the sum"),
        Patch(color=palette.shade(1.0), label="whole sum"),
        Patch(facecolor="white", edgecolor=palette.KIND[Kind.SEND], linewidth=2, label="sent next"),
    ]
    picture.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def sends(world_size: int, round: int) -> dict[int, int]:
    """Return the chunk that each rank sends to its right neighbour in `round`, from 0; empty when all is done."""
    n = world_size
    if round >= 2 * (n - 1):
        return {}
    offset = 1 + round if round < n - 1 else round - (n - 1)
    return {rank: (rank - offset) % n for rank in range(n)}


def state(world_size: int, round: int) -> list[list[frozenset[int]]]:
    """Ranks that have contributed to each rank's copy of each chunk after `round` rounds: `state[rank][chunk]`."""
    n = world_size
    held = [[frozenset({rank}) for _ in range(n)] for rank in range(n)]
    for step in range(round):
        before = [list(row) for row in held]
        for rank, chunk in sends(n, step).items():
            right = (rank + 1) % n
            # the first half adds received chunks, the second half overwrites with them
            held[right][chunk] = before[rank][chunk] | (before[right][chunk] if step < n - 1 else frozenset())
    return held


def _cell(axes: Axes, n: int, rank: int, chunk: int, parts: frozenset[int], sent: bool) -> None:
    whole = len(parts) == n
    share = len(parts) / n
    axes.add_patch(
        Rectangle(
            (rank - _WIDTH / 2, chunk - 0.4),
            _WIDTH,
            0.8,
            facecolor=palette.shade(share),
            edgecolor=palette.KIND[Kind.SEND] if sent else "white",
            linewidth=2.2 if sent else 1.0,
            zorder=3 if sent else 2,
        )
    )
    text = "+".join(map(str, sorted(parts))) if len(parts) <= 3 and n <= 8 else f"{len(parts)}/{n}"
    colour = palette.LIGHT_TEXT if share > 0.6 else palette.DARK_TEXT
    axes.text(
        rank,
        chunk,
        "sum" if whole else text,
        ha="center",
        va="center",
        fontsize=8 if n <= 8 else 7,
        color=colour,
        zorder=4,
    )


def _arrow(axes: Axes, rank: int, chunk: int, last: bool) -> None:
    start = rank + _WIDTH / 2
    axes.add_patch(
        FancyArrowPatch(
            (start, chunk),
            (rank + 1 - _WIDTH / 2, chunk),
            arrowstyle="-|>",
            mutation_scale=11,
            color=palette.KIND[Kind.SEND],
            linewidth=1.8,
            shrinkA=0,
            shrinkB=0,
            zorder=5,
        )
    )
    if last:
        axes.text(rank + 1 - _WIDTH / 2, chunk, " rank 0", ha="left", va="center", fontsize=8)


def _title(n: int, round: int) -> str:
    total = 2 * (n - 1)
    if round == total:
        return f"After {total} rounds every rank holds the whole sum"
    phase = (
        "reduce-scatter: what arrives is added" if round < n - 1 else "all-gather: what arrives replaces what was there"
    )
    return f"Round {round + 1} of {total} · {phase}"


def _describe(n: int, round: int) -> str:
    total = 2 * (n - 1)
    moves = "; ".join(
        f"rank {rank} sends chunk {chunk} to rank {(rank + 1) % n}" for rank, chunk in sends(n, round).items()
    )
    whole = sum(len(parts) == n for row in state(n, round) for parts in row)
    done = (
        f"Ring all-reduce of {count(n, 'rank')} after {round} of {total} rounds: {whole} of {n * n} chunks are whole. "
    )
    return done + (f"Next, {moves}." if moves else "Nothing is left to send.")
