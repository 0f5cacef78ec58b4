"""Traffic between nodes: how many bytes leave each rank for a rank of another node, in messages and collectives.

A library chooses its own algorithm for a collective. It counts as a ring of the group's ranks, in their order, which
sends as few bytes as any other: of n bytes, 2(N-1)/N n over each edge in an all-reduce (Patarasuk & Yuan 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.trace.events import Event, Kind
from labkit.trace.trace import Trace


def bytes_between_nodes(trace: Trace, nodes: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the bytes that ranks of each node send to ranks of each node: `sent[rank][node]`.

    nodes: the ranks of each node, in any placement; ranks that are in none of them count as one more node. Bytes within
    a node are 0.
    """
    node_of = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    outside = len(nodes)
    sent = [[0.0] * (outside + 1) for _ in range(trace.world_size)]
    for event in trace.events:
        peer = event.peer if event.kind is Kind.SEND else None
        nbytes = float(event.nbytes)
        if event.kind is Kind.COLLECTIVE:
            members = trace.members(event)
            peer = members[(members.index(event.rank) + 1) % len(members)]
            nbytes = _over_an_edge(event, len(members))
        if peer is not None and nbytes:
            home, away = node_of.get(event.rank, outside), node_of.get(peer, outside)
            if home != away:
                sent[event.rank][away] += nbytes
    return sent


def mixed_collectives(trace: Trace, nodes: Sequence[Sequence[int]]) -> list[Event]:
    """Return the collectives of groups with ranks of several nodes and several ranks of one of them; no barriers."""
    node_of = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    mixed = []
    for event in trace.collectives():
        members = trace.members(event)
        places = {node_of.get(rank, len(nodes)) for rank in members}
        if 1 < len(places) < len(members) and not event.operation.endswith("barrier"):
            mixed.append(event)
    return mixed


def _over_an_edge(event: Event, size: int) -> float:
    """Bytes that one rank of a ring of `size` ranks sends to the next."""
    operation, nbytes = event.operation, event.nbytes
    if size == 1 or operation.endswith("barrier"):
        return 0.0
    if operation.startswith("all_reduce"):
        return 2 * nbytes * (size - 1) / size
    if operation.startswith(("reduce_scatter", "all_to_all")):
        return nbytes * (size - 1) / size
    if operation.startswith("all_gather"):
        return float(nbytes * (size - 1))
    return float(nbytes)
