"""Duration of collectives: NCCL's algorithms as alpha-beta costs, over the links that the group's topology gives.

Hops and bytes are those that virtual ranks are timed with (`labkit.hardware.nccl`): a ring enters and leaves a node
once, so an all-gather of n ranks on m nodes makes m-1 hops between nodes and n-m inside (Patarasuk & Yuan 2009); a
double tree about 2 log2(m); in the NVSwitch, none. Between nodes the fastest of algorithms and protocols counts, as in
NCCL's tuner. A node's traffic leaves by all its cards, which the groups of the node share. In between, a pipeline is
filled: with the best chunk size it costs the square root of steps x transfer (as in Rabenseifner 2004), up to NCCL's
buffers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from labkit.hardware import Topology
from labkit.hardware.nccl import (
    NVLS_MEMBERS,
    SIMPLE,
    TREE_SHARE,
    Hops,
    nvls_traffic,
    pat_hops,
    protocols,
    ring_hops,
    tree_hops,
    tree_traffic,
)
from labkit.predict.constants import Constants

PAT_VERSION = 2.23
"""Version of NCCL that brought PAT."""
ALPHA_BETA = "alpha-beta: Thakur et al. 2005"
"""Source of the terms that are messages, or collectives without a source of their own."""


class Group(NamedTuple):
    """`ranks` ranks that communicate, `per_node` on each node that they use."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return math.ceil(self.ranks / self.per_node)


def group(ranks: int, stride: int, cluster: Topology) -> Group:
    """Group of `ranks` ranks, every `stride`-th one; a node may hold several such groups."""
    fit = max(1, cluster.nproc_per_node // stride)
    return Group(ranks, min(ranks, fit))


class Wires:
    """A cluster's links and the rates that collectives reach on them."""

    __slots__ = (
        "base",
        "card",
        "cluster",
        "fill",
        "gather_base",
        "gather_hop",
        "hop",
        "inside",
        "lost",
        "network_hop",
        "pat",
        "protocols",
        "reducing",
        "single",
    )

    def __init__(self, cluster: Topology, constants: Constants) -> None:
        intra, inter = cluster.intra_node, cluster.inter_node
        self.cluster = cluster
        limit = math.inf
        if cluster.switch_bytes_per_second is not None:
            limit = cluster.switch_bytes_per_second / cluster.nproc_per_node
        self.inside = min(intra.bytes_per_second * intra.collective_efficiency, limit)
        self.single = min(intra.bytes_per_second, limit)
        self.lost = (self.single / self.inside - 1) * (1 - 1 / intra.collective_ranks)
        self.reducing = intra.bytes_per_second * intra.reduction_efficiency
        uplink = cluster.uplink_bytes_per_second
        cards = cluster.nics_per_node * inter.bytes_per_second * inter.collective_efficiency * constants.network_share
        if uplink is not None and cluster.nodes_per_rack is not None:
            cards = min(cards, uplink / cluster.nodes_per_rack)
        self.card = cards / cluster.nproc_per_node
        """Bytes per second of one GPU's part of its node's cards."""
        self.base = constants.collective_base
        self.hop = constants.hop_seconds
        self.gather_base = constants.gather_base
        self.gather_hop = constants.gather_hop
        self.network_hop = constants.network_hops * inter.latency_seconds
        self.fill = constants.fill_seconds
        self.protocols = [
            (
                self.hop * protocol.inside / SIMPLE.inside,
                self.network_hop * protocol.ring / SIMPLE.ring,
                self.network_hop * protocol.tree / SIMPLE.ring,
                protocol.share_between_nodes,
            )
            for protocol in protocols(intra)
        ]
        """For each protocol: seconds of a hop inside a node, of a ring's and of a tree's between nodes; its share of
        the bandwidth. The measured hops are those of the protocol Simple."""
        self.pat = constants.nccl >= PAT_VERSION and intra.library == "nccl"

    def bus(self, members: Group) -> float:
        """Bytes per second that one rank of a ring sends and receives."""
        if members.nodes == 1:
            return self.inside
        return min(self.inside, self.card * members.per_node)

    def all_reduce(self, nbytes: float, members: Group) -> float:
        if members.ranks <= 1 or nbytes <= 0:
            return 0.0
        n, width, nodes = members.ranks, members.per_node, members.nodes
        if nodes == 1:
            if n > 2 and self.reducing:  # the switch reduces: each rank passes (n + 1)/n of the bytes
                return self._time(self.base, 3 * self.hop, nvls_traffic(nbytes, n, 1).port / self.reducing)
            return self._time(self.base, 2 * (n - 1) * self.hop, self._inside(nbytes, 2 * (n - 1) / n))
        cards = self.card * width
        ring = self._rings(self.base, ring_hops(n, nodes, 2), nbytes * (2 * (n - 1) / n / self.bus(members)))
        port, node = tree_traffic(nbytes, width, nodes)
        tree = self._rings(self.base, tree_hops(width, nodes), max(port / self.inside, node / cards), tree=True)
        offers = [ring, tree]
        if self.reducing and width >= NVLS_MEMBERS:
            port, node = nvls_traffic(nbytes, width, nodes)
            hops = 3 * self.hop + tree_hops(width, nodes).far * self.network_hop
            offers.append(self._time(self.base, hops, max(port / self.reducing, node / cards)))
        return min(offers)

    def all_gather(self, nbytes: float, members: Group) -> float:
        """Seconds; `nbytes` is the size of the gathered tensor. A reduce-scatter of that size takes as long."""
        if members.ranks <= 1 or nbytes <= 0:
            return 0.0
        n, nodes = members.ranks, members.nodes
        if nodes == 1:
            return self._time(self.gather_base, (n - 1) * self.gather_hop, self._inside(nbytes, (n - 1) / n))
        moving = nbytes * (n - 1) / n / self.bus(members)
        ring = self._rings(self.gather_base, ring_hops(n, nodes, 1), moving)
        if members.per_node > 1 or not self.pat:
            return ring
        return min(ring, self._time(self.gather_base, pat_hops(nodes).far * self.network_hop, moving))

    reduce_scatter = all_gather

    def all_to_all(self, nbytes: float, members: Group) -> float:
        """Seconds; each rank holds `nbytes`, keeps 1/n and sends the rest, through its card what leaves the node."""
        if members.ranks <= 1 or nbytes <= 0:
            return 0.0
        n = members.ranks
        near = nbytes * (members.per_node - 1) / n / self.single
        far = nbytes * (n - members.per_node) / n / self.card if members.nodes > 1 else 0.0
        return self.gather_base + max(near, far)

    def send(self, nbytes: float, *, inside: bool) -> float:
        """Seconds of one message to a neighbour."""
        if inside:
            return self.cluster.intra_node.latency_seconds + self.hop + nbytes / self.inside
        return self.cluster.inter_node.latency_seconds + self.network_hop + nbytes / min(self.card, self.inside)

    def _inside(self, nbytes: float, turns: float) -> float:
        """Seconds of a ring inside a node: the link at its peak, plus the cost of each byte on the GPU itself.

        The two add up to the link's `collective_efficiency` at its `collective_ranks`, and to less with fewer ranks, as
        nccl-tests finds on A100 (197 GB/s with 2 ranks, 231 with 8, at a peak of 300).
        """
        passes = 1 if turns < 1 else 2
        return nbytes * (turns + passes * self.lost) / self.single

    def _rings(self, base: float, hops: Hops, moving: float, *, tree: bool = False) -> float:
        """Seconds of a ring, or a tree, over several nodes, in the protocol that is fastest."""
        kept, (near, far) = TREE_SHARE if tree else 1.0, hops
        return min(
            self._time(base, near * inside + far * (branch if tree else ring), moving / (kept * share))
            for inside, ring, branch, share in self.protocols
        )

    def _time(self, base: float, hops: float, moving: float) -> float:
        return base + min(self.fill, math.sqrt(hops * moving)) + max(0.0, hops - self.fill) + moving
