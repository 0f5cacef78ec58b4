"""Network cards: the ranks on each card of each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Placement(Protocol):
    """A cluster, such as `labkit.hardware.Topology`: the number of its ranks, and each rank's (node, card)."""

    @property
    def world_size(self) -> int: ...

    def nic_of(self, rank: int) -> tuple[int, int]: ...


def cards_of(topology: Placement | Sequence[tuple[int, int]]) -> list[list[list[int]]]:
    """Return the ranks on each network card of each node: `cards[node][card]`, in ascending order.

    topology: each rank's (node, card), which may be any whole numbers, or a cluster that knows them. Nodes and cards
    are in ascending order. Raises `ValueError` if it is empty or an item is not a pair.
    """
    given: Any = topology
    if hasattr(given, "nic_of"):
        given = [given.nic_of(rank) for rank in range(given.world_size)]
    places: dict[int, dict[int, list[int]]] = {}
    for rank, place in enumerate(given if isinstance(given, Sequence) else [given]):
        if not isinstance(place, Sequence) or len(place) != 2 or not all(isinstance(number, int) for number in place):
            raise ValueError(f"topology must have a (node, card) for each rank, got {place!r} for rank {rank}")
        places.setdefault(place[0], {}).setdefault(place[1], []).append(rank)
    if not places:
        raise ValueError(f"topology must have a (node, card) for each rank, got {topology!r}")
    return [[places[node][card] for card in sorted(places[node])] for node in sorted(places)]
