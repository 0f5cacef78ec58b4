"""A hierarchical all-reduce, step by step: the shards of each rank, node by node, and what each step moves."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Kind

LAST = 3
"""Number of steps: reduce-scatter, all-reduce, all-gather."""
_GAP = 0.7
"""Room between two nodes, in ranks."""
_TITLES = (
    "Next, step 1 inside each node: reduce-scatter. Arrows: shard 0 goes to its owner",
    "Next, step 2 between the nodes: all-reduce of each shard by its owners",
    "Next, step 3 inside each node: all-gather. Arrows: shard 0 goes to all",
    "After step 3 every rank has the whole sum",
)


def two_levels(nnodes: int, nproc_per_node: int, step: int) -> Picture:
    """Draw the shards of every rank after `step` steps, 0 to 3, and arrows for what the next step moves.

    A column per rank, a row per shard; `0+1` is the sum of the inputs of ranks 0 and 1. Raises `ValueError` for a
    nonexistent step, and for more than 12 ranks, which do not fit into a picture.
    """
    if not 0 <= step <= LAST:
        raise ValueError(f"step must be 0 to {LAST}, got {step}")
    if not 2 <= nnodes * nproc_per_node <= 12:
        raise ValueError(f"nnodes * nproc_per_node must be 2 to 12, got {nnodes * nproc_per_node}")
    held = state(nnodes, nproc_per_node, step)
    n, size = nnodes * nproc_per_node, nproc_per_node
    picture = Picture(height=0.45 * size + 1.9, alt=_describe(nnodes, size, step, held))
    axes = picture.add_subplot()
    axes.set_title(_TITLES[step], loc="left", fontsize=11)
    axes.set_xlim(-0.95, _x(n - 1, size) + 0.75)
    axes.set_ylim(size + 0.15, -1.75)
    axes.set_axis_off()
    for node in range(nnodes):
        left, right = _x(node * size, size) - 0.52, _x((node + 1) * size - 1, size) + 0.52
        axes.add_patch(
            Rectangle((left, -1.0), right - left, size + 0.6, facecolor="none", edgecolor=palette.FAINT, linewidth=1.2)
        )
        axes.text((left + right) / 2, -1.22, f"node {node}", ha="center", va="center", fontsize=9, color=palette.NOTE)
    for rank in range(n):
        axes.text(_x(rank, size), -0.72, f"rank {rank}", ha="center", va="center", fontsize=9)
        for shard in range(size):
            _cell(axes, rank, shard, held[rank][shard], n, size, owned=0 < step < LAST and shard == rank % size)
    for shard in range(size):
        axes.text(-0.6, shard, f"shard {shard}", ha="right", va="center", fontsize=9)
    for source, destination, row in moves(nnodes, size, step):
        _arrow(axes, source, destination, row, size)
    legend = [
        Patch(color=palette.shade(0.15), label="part of the sum"),
        Patch(color=palette.shade(1.0), label="whole sum"),
        Patch(facecolor="white", edgecolor=palette.KIND[Kind.SEND], linewidth=2, label="owned by this rank"),
    ]
    picture.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def state(nnodes: int, size: int, step: int) -> list[list[frozenset[int] | None]]:
    """Ranks that have contributed to each rank's copy of each shard: `state[rank][shard]`; None: undefined."""
    everything = frozenset(range(nnodes * size))
    held: list[list[frozenset[int] | None]] = []
    for rank in range(nnodes * size):
        node = frozenset(range(rank // size * size, rank // size * size + size))
        own = {0: frozenset({rank}), 1: node}.get(step, everything)
        others = {0: frozenset({rank}), LAST: everything}.get(step)
        held.append([own if shard == rank % size else others for shard in range(size)])
    return held


def moves(nnodes: int, size: int, step: int) -> list[tuple[int, int, int]]:
    """(source, destination, shard) of the arrows of the step after `step`: of step 2 all, of the others shard 0's."""
    first = [node * size for node in range(nnodes)]
    if step == 0:
        return [(owner + other, owner, 0) for owner in first for other in range(1, size)]
    if step == 1:
        return [(owner + shard, owner + size + shard, shard) for owner in first[:-1] for shard in range(size)]
    if step == 2:
        return [(owner, owner + other, 0) for owner in first for other in range(1, size)]
    return []


def _x(rank: int, size: int) -> float:
    return rank + rank // size * _GAP


def _cell(axes: Axes, rank: int, shard: int, parts: frozenset[int] | None, n: int, size: int, owned: bool) -> None:
    share = 0.0 if parts is None else len(parts) / n
    edge = palette.KIND[Kind.SEND] if owned else palette.OUTLINE if parts is None else "white"
    axes.add_patch(
        Rectangle(
            (_x(rank, size) - 0.4, shard - 0.36),
            0.8,
            0.72,
            facecolor="none" if parts is None else palette.shade(share),
            edgecolor=edge,
            linewidth=2.2 if owned else 1.0,
            zorder=3 if owned else 2,
        )
    )
    if parts is not None:
        text = "sum" if len(parts) == n else "+".join(map(str, sorted(parts)))
        colour = palette.LIGHT_TEXT if share > 0.6 else palette.DARK_TEXT
        fontsize = 8 if len(text) < 6 else 6.5
        axes.text(_x(rank, size), shard, text, ha="center", va="center", fontsize=fontsize, color=colour, zorder=4)


def _arrow(axes: Axes, source: int, destination: int, row: int, size: int) -> None:
    """An arc above the row inside a node; straight through the row, whose cells are empty there, between nodes."""
    between = source // size != destination // size
    start, end = (_x(source, size), row - 0.3), (_x(destination, size), row - 0.3)
    if between:
        start, end = (_x(source, size) + 0.4, row), (_x(destination, size) - 0.4, row)
    bend = 0.0 if between else 0.16 if destination < source else -0.16
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="<|-|>" if between else "-|>",
            connectionstyle=f"arc3,rad={bend}",
            mutation_scale=10,
            color=palette.KIND[Kind.SEND] if between else palette.KIND[Kind.COLLECTIVE],
            linewidth=1.7,
            shrinkA=1,
            shrinkB=1,
            zorder=5,
        )
    )


def _describe(nnodes: int, size: int, step: int, held: list[list[frozenset[int] | None]]) -> str:
    n = nnodes * size
    whole = sum(parts is not None and len(parts) == n for row in held for parts in row)
    return (
        f"Hierarchical all-reduce of {nnodes} nodes with {size} ranks after {step} of {LAST} steps: {whole} of "
        f"{n * size} shards are whole. {_TITLES[step]}."
    )
