"""How long a library collective takes on the virtual cluster: one stated algorithm for each.

Not used for what learners write out of sends and receives: that is timed message by message in network.py.

N ranks, n bytes of the largest input, and a step that moves b bytes along the whole ring at once takes the time of
its slowest hop: latency + b x (hops that share a network card) / bandwidth.

| collective                              | algorithm | time                                            |
|-----------------------------------------|-----------|-------------------------------------------------|
| all_reduce                              | ring      | 2(N-1) steps of n/N (Patarasuk & Yuan 2009)     |
| reduce_scatter                          | ring      | N-1 steps of n/N                                |
| all_gather                              | ring      | N-1 steps of n                                  |
| all_to_all                              | pairwise  | N-1 steps of n/N                                |
| broadcast, reduce                       | tree      | ceil(log2 N) steps of n                         |
| gather, scatter                         | direct    | the root's port: N-1 times n, or the root's n   |
| barrier                                 | tree      | 2 ceil(log2 N) latencies                        |
"""

from __future__ import annotations

import math
from collections import Counter

from labkit.hardware import Topology


def collective_seconds(name: str, nbytes: int, ranks: tuple[int, ...], topology: Topology) -> float:
    """Seconds from the last member's joining to the end. `nbytes`: of the largest member's input."""
    n = len(ranks)
    if n == 1:
        return 0.0
    rounds = math.ceil(math.log2(n))
    if name == "all_reduce":
        return 2 * (n - 1) * _step(nbytes / n, ranks, topology)
    if name in ("reduce_scatter", "all_to_all"):
        return (n - 1) * _step(nbytes / n, ranks, topology)
    if name == "all_gather":
        return (n - 1) * _step(nbytes, ranks, topology)
    if name in ("broadcast", "reduce"):
        return rounds * _step(nbytes, ranks, topology)
    if name == "gather":
        return _step((n - 1) * nbytes, ranks, topology)
    if name == "scatter":
        return _step(nbytes, ranks, topology)
    if name == "barrier":
        return 2 * rounds * _step(0, ranks, topology)
    raise KeyError(name)


def _step(nbytes: float, ranks: tuple[int, ...], topology: Topology) -> float:
    """One step of a ring through `ranks`: every rank sends `nbytes` to the next one; the slowest hop counts."""
    hops = [(a, b) for a, b in zip(ranks, ranks[1:] + ranks[:1], strict=True) if a != b]
    crossing = [(a, b) for a, b in hops if topology.node_of(a) != topology.node_of(b)]
    leaving = Counter(topology.nic_of(a) for a, _ in crossing)
    slowest = 0.0
    for a, b in hops:
        link = topology.link_between(a, b)
        sharing = leaving[topology.nic_of(a)] if topology.node_of(a) != topology.node_of(b) else 1
        slowest = max(slowest, link.latency_seconds + nbytes * sharing / link.bytes_per_second)
    return slowest
