"""Cycles of ranks that wait for each other, and their description. Virtual and real ranks use the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SENDS_FIRST = (
    "each of them sends first, and a send ends only when its receive is posted: let one side receive first, or post "
    "the send with isend and wait for it after the receive"
)
RECEIVES_FIRST = "each of them receives first, so nobody sends: let one of them send first"
_MOST_SHOWN = 10


def in_other_order(groups: Sequence[str]) -> str:
    """Describe a cycle of collectives in several groups."""
    return (
        f"they are in collectives of {len(groups)} different groups ({', '.join(groups)}): every rank must call the "
        "collectives of its groups in the same order"
    )


def find(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """A cycle of waiting ranks, with its first rank repeated at the end; empty if there is no cycle.

    waits: for each waiting rank, the ranks that it waits for.
    """
    done: set[int] = set()
    for start in sorted(waits):
        path: list[int] = []
        rank: int | None = start
        while rank is not None and rank in waits and rank not in done and rank not in path:
            path.append(rank)
            rank = next((peer for peer in waits[rank] if peer in waits), None)
        if rank in path:
            cycle = path[path.index(rank) :]
            turn = cycle.index(min(cycle))
            return [*cycle[turn:], *cycle[:turn], cycle[turn]]
        done.update(path)
    return []


def shown(found: Sequence[int]) -> str:
    """`cycle: 0 → 1 → 2 → 0`."""
    short = found if len(found) <= _MOST_SHOWN else [*found[:4], -1, *found[-3:]]
    return "cycle: " + " → ".join("..." if rank < 0 else str(rank) for rank in short)
