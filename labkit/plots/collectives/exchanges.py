"""Rounds of messages as a lattice: a column per rank, a row per round, and the data that each rank holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Kind
from labkit.units import count

Steps = Sequence[Sequence[tuple[int, int]]]
"""For each round, the (source, destination) of each message."""
MOST_RANKS = 16
MOST_ROUNDS = 16
_WIDTH, _HEIGHT = 0.66, 0.42


def tree_steps(world_size: int) -> list[list[tuple[int, int]]]:
    """Rounds of an all-reduce by a binomial tree: up to rank 0, then down again."""
    distances = [1 << k for k in range((world_size - 1).bit_length())]
    up = [[(rank + d, rank) for rank in range(0, world_size - d, 2 * d)] for d in distances]
    return up + [[(parent, child) for child, parent in step] for step in reversed(up)]


def doubling_steps(world_size: int) -> list[list[tuple[int, int]]]:
    """Rounds of an all-reduce by recursive doubling; ranks beyond the largest power of two send before it and receive
    after it."""
    core = 1 << (world_size.bit_length() - 1)
    beyond = [(rank, rank - core) for rank in range(core, world_size)]
    steps = [[(rank, rank ^ (1 << k)) for rank in range(core)] for k in range(core.bit_length() - 1)]
    return [beyond, *steps, [(b, a) for a, b in beyond]] if beyond else steps


def exchanges(world_size: int, steps: Steps, round: int, holders: Collection[int] | None = None) -> Picture:
    """Draw the data of every rank after each of the first `round` rounds of `steps`, and the messages between.

    A rank's data is shown as the ranks that contributed to it: at first itself, or nothing if it is not in `holders`
    (None: all ranks). Received data is merged with it. `steps` is a schedule, or that of a run:
    `labkit.trace.rounds.message_rounds(run.trace)`. Raises `ValueError` for a nonexistent round, and for more than 16
    ranks or 16 rounds, which do not fit into a picture.
    """
    if not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size must be 1 to {MOST_RANKS}, got {world_size}")
    if len(steps) > MOST_ROUNDS:
        raise ValueError(f"steps must be at most {MOST_ROUNDS} rounds, got {len(steps)}")
    if not 0 <= round <= len(steps):
        raise ValueError(f"round must be 0 to {len(steps)}, got {round}")
    begin = range(world_size) if holders is None else holders
    states = held(world_size, steps[:round], begin)
    everything = frozenset(begin)

    picture = Picture(height=0.52 * (len(steps) + 1) + 1.0, alt=_describe(world_size, steps, round, states, everything))
    axes = picture.add_subplot()
    axes.set_title(_title(len(steps), round, steps), loc="left", fontsize=11)
    axes.set_xlim(-1.15, world_size - 0.5)
    axes.set_ylim(len(steps) + 0.35, -0.75)
    axes.set_axis_off()
    for rank in range(world_size):
        axes.text(rank, -0.55, f"rank {rank}" if world_size <= 10 else str(rank), ha="center", va="center", fontsize=9)
    for row in range(len(steps) + 1):
        label = "start" if row == 0 else f"round {row}"
        axes.text(
            -0.55, row, label, ha="right", va="center", fontsize=9, color="black" if row <= round else palette.FAINT
        )
        for rank in range(world_size):
            _box(axes, rank, row, states[row][rank] if row <= round else None, everything)
    for row, step in enumerate(steps[:round]):
        for source, destination in step:
            _arrow(axes, source, destination, row)
    handles = [
        Patch(color=palette.shade(0.15), label="data of some ranks"),
        Patch(color=palette.shade(1.0), label="of all"),
        Patch(color=palette.KIND[Kind.SEND], label="message"),
    ]
    picture.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def held(world_size: int, steps: Steps, holders: Collection[int]) -> list[list[frozenset[int]]]:
    """Ranks whose data each rank holds, at the start and after each round: `held[round][rank]`."""
    states = [[frozenset({rank}) if rank in holders else frozenset() for rank in range(world_size)]]
    for step in steps:
        before = states[-1]
        after = list(before)
        for source, destination in step:
            after[destination] |= before[source]
        states.append(after)
    return states


def _box(axes: Axes, rank: int, row: int, parts: frozenset[int] | None, everything: frozenset[int]) -> None:
    share = len(parts) / max(len(everything), 1) if parts else 0.0
    place = (rank - _WIDTH / 2, row - _HEIGHT / 2)
    colour = palette.shade(share) if parts else "white"
    axes.add_patch(
        Rectangle(place, _WIDTH, _HEIGHT, facecolor=colour, edgecolor=palette.OUTLINE, linewidth=0.8, zorder=3)
    )
    if parts:
        text = "all" if parts == everything and len(parts) > 1 else _ranges(parts)
        axes.text(
            rank,
            row,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color=palette.LIGHT_TEXT if share > 0.6 else palette.DARK_TEXT,
            zorder=4,
        )


def _arrow(axes: Axes, source: int, destination: int, row: int) -> None:
    side = 0.12 if destination > source else -0.12
    axes.add_patch(
        FancyArrowPatch(
            (source + side, row + _HEIGHT / 2),
            (destination - side, row + 1 - _HEIGHT / 2),
            arrowstyle="-|>",
            mutation_scale=9,
            color=palette.KIND[Kind.SEND],
            linewidth=1.6,
            shrinkA=0,
            shrinkB=0,
            zorder=5,
        )
    )


def _ranges(parts: frozenset[int]) -> str:
    """Format as `0-3`, as `0+4`, or as a count."""
    ordered = sorted(parts)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return "+".join(map(str, ordered)) if len(ordered) <= 2 else f"{len(ordered)} ranks"


def _title(total: int, round: int, steps: Steps) -> str:
    if round == 0:
        return f"Before the first of {count(total, 'round')}"
    return f"After round {round} of {total} · {count(len(steps[round - 1]), 'message')} in it"


def _describe(
    world_size: int, steps: Steps, round: int, states: list[list[frozenset[int]]], everything: frozenset[int]
) -> str:
    whole = sum(parts == everything for parts in states[-1])
    text = (
        f"Messages among {count(world_size, 'rank')} in {count(len(steps), 'round')}. After {round} of them "
        f"{whole} of {count(world_size, 'rank')} hold the data of all."
    )
    if round:
        moves = ", ".join(f"{source} to {destination}" for source, destination in steps[round - 1])
        text += f" In round {round}: {moves}."
    return text
