"""NCCL cost model: how long a library collective takes on the virtual cluster, and its load on the links.

Not used for what learners write out of sends and receives: that is timed message by message in network.py.

The cost of every algorithm that can do a collective is computed, and the cheapest is chosen, as in NCCL's tuner
(NVIDIA/nccl, src/graph/tuning.cc; Hu et al., "Demystifying NCCL", 2025; the double tree: Sanders, Speck & Traeff 2009).
N ranks, n bytes, m nodes; W is the traffic of each edge:

| collective            | algorithm         | hops one after the other     | bytes                                     |
|-----------------------|-------------------|------------------------------|-------------------------------------------|
| all_reduce, barrier   | ring              | 2(N-1), 2(m-1) between nodes | W = 2n(N-1)/N (Patarasuk & Yuan 2009)     |
| all_reduce, m > 1     | tree              | 2(N/m-1) + 2 ceil(log2 m)    | chains of 2n inside, double tree 2n(m-1)/m|
| all_reduce, NVSwitch  | nvls              | none, 55 us                  | port: n(1+1/N); the switch adds up        |
| all_reduce, NVSwitch  | nvls tree, m > 1  | 55 us + 2 ceil(log2 m)       | port: n(1+m/N), node: 2n(m-1)/m           |
| reduce_scatter        | ring              | N-1, m-1 between nodes       | W = n(N-1)/N                              |
| all_gather (n: shard) | ring              | N-1, m-1 between nodes       | W = n(N-1)                                |
| broadcast, reduce     | ring as a pipeline| N-1, m-1 between nodes       | W = n                                     |
| all_to_all            | pairwise, 8 peers | ceil((N-1)/8)                | n(N-1)/N out of and into each port        |
| all_to_all, unequal   | pairwise, 8 peers | ceil((N-1)/8)                | each pair's, added up for each link       |
| gather, scatter       | direct, 8 peers   | ceil((N-1)/8)                | the root's port: n(N-1), n(N-1)/N         |

    seconds = 4 launches + hops x (the link's latency x factor) + max over links(bytes / (peak x efficiency x share))

Rings and trees enter and leave a node once for each of the network cards that the group's members have there, so a
node sends W (a tree: 2n(m-1)/m) spread over those cards, and they run in any of three protocols:

| protocol | share of bandwidth          | latency factor inside a node | between nodes      |
|----------|-----------------------------|------------------------------|--------------------|
| LL       | 1/2, with several nodes 1/4 | 0.2                          | 0.55, in a tree 1  |
| LL128    | 0.92; not on PCIe           | 0.42                         | 0.8, in a tree 1.7 |
| Simple   | 1                           | 1.13                         | 2.8                |

Bandwidth shares and factors are NCCL's constants divided by our links' latencies (its hops over NVLink are 0.6, 1.25
and 3.4 us, over the network 2.7, 4 and 14). Efficiencies are defined with the links. Fitted to published runs are:
the four launches of the GPU's own overhead, NVLS's 55 us, and the efficiencies of NVLink 3 and 4 and of NVLink SHARP.

Compared with 94 published all-reduces on one node of A100, H100 or H200, 1 KB to 8 GB (tests/clusters/virtual/
test_published_collectives.py), the median error is 5 %, the worst 39 %, and the model is 6 % too fast overall.
Its largest errors: eight A100s at 1 to 134 MB take up to 64 % longer than here (two sources differ there by 80 % at
1 MB and by 20 % above); two A100s reach 85 % of the bandwidth of eight, here they are equal. Small messages on one H100
node took 42 us where its twin with H200s took 30, as here. Between nodes it is compared with 14 all-reduces quoted in
public threads, published_between_nodes.csv: median 4 %, worst 21 % (small messages). All other collectives, B200,
Ethernet, EFA and PCIe are compared with no measurement but one size.

Not modelled: NCCL's choice of channels, NVLS for all_gather and reduce_scatter, PAT, SHARP in the network.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from labkit.hardware.nccl import (
    NVLS_MEMBERS,
    SIMPLE,
    TREE_SHARE,
    nvls_traffic,
    protocols,
    ring_hops,
    tree_hops,
    tree_traffic,
)
from labkit.hardware.topology import Hop, Topology

COLLECTIVE_LAUNCHES = 4
"""GPU launch overheads per collective: its kernel starts everywhere and the ranks meet."""
NVLS_SECONDS = 55e-6
"""Extra seconds of a collective in the NVSwitch, instead of hops."""
PEERS_AT_ONCE = 8
"""Peers that one kernel of sends and receives serves at the same time."""

OutIn = tuple[float, float]


@dataclass(frozen=True)
class CollectivePlan:
    """Algorithm of a collective, and its cost."""

    algorithm: str
    """`ring LL128`, `nvls tree`, ..."""
    seconds: float
    """Seconds from the last member's joining to the end, on links without other traffic."""
    port_bytes: Mapping[int, OutIn]
    """Bytes out of and into each rank's port."""
    nic_bytes: Mapping[tuple[int, int], OutIn]
    """Bytes out of and into each card, by (node, card)."""
    switch_bytes: Mapping[int, float]
    """Bytes through each node's switch; empty if the switch does not block."""
    uplink_bytes: Mapping[int, OutIn]
    """Bytes out of and into each rack; empty if uplinks do not block."""
    candidates: tuple[tuple[str, float], ...] = ()
    """All possible algorithms, the fastest first, with their seconds."""

    def loads(self, topology: Topology) -> Iterator[tuple[Hop, float]]:
        """Every link that it crosses, one direction each, and its bytes there."""
        for pairs, load in (
            *((topology.port(rank), load) for rank, load in self.port_bytes.items()),
            *((topology.nic(*card), load) for card, load in self.nic_bytes.items()),
            *((topology.uplink(rack), load) for rack, load in self.uplink_bytes.items()),
        ):
            yield from zip(pairs, load, strict=True)
        for node, nbytes in self.switch_bytes.items():
            yield topology.switch(node), nbytes

    def why(self) -> str:
        """The choice in one line."""
        others = ", ".join(f"{name} {seconds * 1e6:.1f} us" for name, seconds in self.candidates[1:])
        return f"{self.algorithm}: {self.seconds * 1e6:.1f} us" + (f" (other ways: {others})" if others else "")


@lru_cache(maxsize=512)
def choose(
    name: str,
    nbytes: int,
    ranks: tuple[int, ...],
    topology: Topology,
    root: int = 0,
    pairs: tuple[tuple[int, ...], ...] = (),
) -> CollectivePlan:
    """The fastest algorithm for a collective among `ranks` (global ranks).

    nbytes: size of the largest member's input; for all_gather and gather that is one shard, for scatter the root's
    whole input. `root` is an index into `ranks`. pairs: of an all_to_all with unequal pieces, the bytes from each
    member to each. Raises KeyError for a collective that the table does not have.
    """
    price = _PRICES[name]
    if len(ranks) == 1:
        return CollectivePlan("nothing to do", 0.0, {}, {}, {}, {})
    group = _group(ranks, topology)
    candidates = _messages("pairwise", group, _unequal_load(group, pairs)) if pairs else price(nbytes, group, root)
    offers = sorted(candidates, key=lambda offer: offer.seconds)
    best = offers[0]
    return CollectivePlan(
        best.algorithm,
        best.seconds,
        best.load.ports,
        best.load.nics,
        best.load.switches,
        best.load.uplinks,
        tuple((offer.algorithm, offer.seconds) for offer in offers),
    )


# Members ----------------------------------------------------------------------------------------------------------


class _Members:
    """The members of a collective, and their places."""

    def __init__(self, ranks: tuple[int, ...], topology: Topology) -> None:
        self.ranks, self.topology = ranks, topology
        self.size = len(ranks)
        self.members: dict[int, list[int]] = {}
        """Members by node."""
        self.cards: dict[tuple[int, int], list[int]] = {}
        """Members by their network card."""
        for rank in ranks:
            self.members.setdefault(topology.node_of(rank), []).append(rank)
            self.cards.setdefault(topology.nic_of(rank), []).append(rank)
        self.nnodes = len(self.members)
        self.racks = {topology.rack_of(node) for node in self.members}
        self.launch = COLLECTIVE_LAUNCHES * max(topology.gpu_of(rank).launch_seconds for rank in ranks)

    def spread(self, nbytes: float) -> dict[tuple[int, int], OutIn]:
        """Bytes that each node sends and receives, in equal parts over its members' cards."""
        if self.nnodes == 1:
            return {}
        count = Counter(node for node, _ in self.cards)
        return {(node, card): (nbytes / count[node], nbytes / count[node]) for node, card in self.cards}


@lru_cache(maxsize=512)
def _group(ranks: tuple[int, ...], topology: Topology) -> _Members:
    return _Members(ranks, topology)


# Load on the links ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LinkLoad:
    """Bytes by link, and the time of the busiest link at the fraction of its peak that collectives reach."""

    ports: dict[int, OutIn]
    nics: dict[tuple[int, int], OutIn]
    switches: dict[int, float]
    uplinks: dict[int, OutIn]

    def seconds(self, topology: Topology, port_efficiency: float) -> float:
        between = topology.inter_node.bytes_per_second * topology.inter_node.collective_efficiency
        inside = topology.intra_node.bytes_per_second * port_efficiency
        seconds = max(_most(self.ports) / inside, _most(self.nics) / between)
        if self.switches and topology.switch_bytes_per_second is not None:
            seconds = max(seconds, max(self.switches.values()) / topology.switch_bytes_per_second)
        if self.uplinks and topology.uplink_bytes_per_second is not None:
            efficiency = topology.inter_node.collective_efficiency
            seconds = max(seconds, _most(self.uplinks) / (topology.uplink_bytes_per_second * efficiency))
        return seconds


def _most(loads: Mapping[Any, OutIn]) -> float:
    return max((max(load) for load in loads.values()), default=0.0)


def _symmetric(group: _Members, port: float, node: float, edge: float, edges: Callable[[int], int]) -> _LinkLoad:
    """Load with `port` bytes on every member's port and `node` bytes into and out of every node.

    `edges(members)` edges of `edge` bytes go through the switch of a node. Rings, and the trees that NCCL builds, enter
    and leave a rack once, so its uplink carries what one node does.
    """
    topology = group.topology
    return _LinkLoad(
        dict.fromkeys(group.ranks, (port, port)),
        group.spread(node),
        {at: edge * edges(len(ranks)) for at, ranks in group.members.items()} if topology.switch_gb_per_s else {},
        dict.fromkeys(group.racks, (node, node)) if len(group.racks) > 1 and topology.uplink_bytes_per_second else {},
    )


def _ring_load(group: _Members, nbytes: float) -> _LinkLoad:
    """`nbytes` over each edge of the ring."""
    closed = group.nnodes == 1
    return _symmetric(group, nbytes, nbytes, nbytes, lambda members: members if closed else members - 1)


def _pairwise_load(group: _Members, piece: float) -> _LinkLoad:
    """`piece` bytes from every member to every other one."""
    topology, n = group.topology, group.size
    on_node = {node: len(ranks) for node, ranks in group.members.items()}
    on_rack = Counter(topology.rack_of(topology.node_of(rank)) for rank in group.ranks)
    cards = {card: piece * len(ranks) * (n - on_node[card[0]]) for card, ranks in group.cards.items()}
    uplinks = {rack: piece * count * (n - count) for rack, count in on_rack.items()}
    return _LinkLoad(
        dict.fromkeys(group.ranks, (piece * (n - 1), piece * (n - 1))),
        {card: (load, load) for card, load in cards.items()} if group.nnodes > 1 else {},
        {node: piece * k * (k - 1) for node, k in on_node.items()} if topology.switch_gb_per_s else {},
        {rack: (load, load) for rack, load in uplinks.items()} if topology.uplink_bytes_per_second else {},
    )


def _unequal_load(group: _Members, pairs: Sequence[Sequence[int]]) -> _LinkLoad:
    """`pairs[i][j]` bytes from member i to member j."""
    topology = group.topology
    ports, nics, uplinks = (defaultdict[Any, list[float]](lambda: [0.0, 0.0]) for _ in range(3))
    switches = defaultdict[int, float](float)
    for source, row in zip(group.ranks, pairs, strict=True):
        for target, nbytes in zip(group.ranks, row, strict=True):
            if source == target or not nbytes:
                continue
            home, away = topology.node_of(source), topology.node_of(target)
            links: list[tuple[defaultdict[Any, list[float]], Any, Any]] = [(ports, source, target)]
            if home == away:
                switches[home] += nbytes
            else:
                links.append((nics, topology.nic_of(source), topology.nic_of(target)))
                if topology.rack_of(home) != topology.rack_of(away):
                    links.append((uplinks, topology.rack_of(home), topology.rack_of(away)))
            for loads, sender, receiver in links:
                loads[sender][0] += nbytes
                loads[receiver][1] += nbytes
    out_in = [{at: (out, into) for at, (out, into) in loads.items()} for loads in (ports, nics, uplinks)]
    return _LinkLoad(
        out_in[0],
        out_in[1],
        dict(switches) if topology.switch_gb_per_s else {},
        out_in[2] if topology.uplink_bytes_per_second else {},
    )


def _direct_load(group: _Members, root: int, piece: float, to_root: bool) -> _LinkLoad:
    """`piece` bytes between the root and every other member."""
    topology, center = group.topology, group.ranks[root]
    home = topology.node_of(center)
    ports, nics, switches, uplinks = (defaultdict[Any, float](float) for _ in range(4))
    for rank in group.ranks:
        if rank == center:
            continue
        node = topology.node_of(rank)
        for end in (rank, center):
            ports[end] += piece
        if node == home:
            switches[node] += piece
            continue
        for end in (rank, center):
            nics[topology.nic_of(end)] += piece
        if topology.rack_of(node) != topology.rack_of(home):
            for at in (node, home):
                uplinks[topology.rack_of(at)] += piece

    def one_way(loads: Mapping[Any, float], of_root: Any) -> dict[Any, OutIn]:
        return {at: (0.0, load) if (at == of_root) == to_root else (load, 0.0) for at, load in loads.items()}

    return _LinkLoad(
        one_way(ports, center),
        one_way(nics, topology.nic_of(center)),
        dict(switches) if topology.switch_gb_per_s else {},
        one_way(uplinks, topology.rack_of(home)) if topology.uplink_bytes_per_second else {},
    )


# The table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    algorithm: str
    seconds: float
    load: _LinkLoad


def _rings(group: _Members, edge: float, rounds: int) -> Iterator[_Candidate]:
    """`edge` bytes over each edge, in `rounds` rounds of the ring."""
    topology, m = group.topology, group.nnodes
    load = _ring_load(group, edge)
    seconds = load.seconds(topology, topology.intra_node.collective_efficiency)
    near, far = ring_hops(group.size, m, rounds)
    for protocol in protocols(topology.intra_node):
        hops = near * protocol.inside * topology.intra_node.latency_seconds
        hops += far * protocol.ring * topology.inter_node.latency_seconds
        share = protocol.share if m == 1 else protocol.share_between_nodes
        yield _Candidate(f"ring {protocol.name}", group.launch + hops + seconds / share, load)


def _trees(group: _Members, nbytes: float) -> Iterator[_Candidate]:
    """All-reduce along a chain in each node and a double binary tree between the nodes, up and down."""
    topology, m = group.topology, group.nnodes
    widest = max(len(ranks) for ranks in group.members.values())
    load = _symmetric(group, *tree_traffic(nbytes, widest, m), 2 * nbytes, lambda members: members - 1)
    seconds = load.seconds(topology, topology.intra_node.collective_efficiency)
    near, far = tree_hops(widest, m)
    for protocol in protocols(topology.intra_node):
        hops = near * protocol.inside * topology.intra_node.latency_seconds
        hops += far * protocol.tree * topology.inter_node.latency_seconds
        share = TREE_SHARE * protocol.share_between_nodes
        yield _Candidate(f"tree {protocol.name}", group.launch + hops + seconds / share, load)


def _nvls(group: _Members, nbytes: float) -> Iterator[_Candidate]:
    """All-reduce in the NVSwitch; each member holds one part of the sum, and a tree adds the nodes' sums."""
    topology, m = group.topology, group.nnodes
    counts = {len(ranks) for ranks in group.members.values()}
    width = max(counts)
    if not topology.intra_node.reduction_efficiency or len(counts) > 1 or width < NVLS_MEMBERS:
        return
    load = _symmetric(group, *nvls_traffic(nbytes, width, m), nbytes, lambda members: members)
    hops = NVLS_SECONDS
    if m > 1:
        hops += tree_hops(width, m).far * SIMPLE.tree * topology.inter_node.latency_seconds
    seconds = group.launch + hops + load.seconds(topology, topology.intra_node.reduction_efficiency)
    yield _Candidate("nvls" if m == 1 else "nvls tree", seconds, load)


def _all_reduce(nbytes: float, group: _Members, root: int) -> list[_Candidate]:
    offers = [*_rings(group, 2 * nbytes * (group.size - 1) / group.size, 2), *_nvls(group, nbytes)]
    return [*offers, *_trees(group, nbytes)] if group.nnodes > 1 else offers


def _messages(name: str, group: _Members, load: _LinkLoad) -> list[_Candidate]:
    """Sends and receives directly between members, `PEERS_AT_ONCE` at a time."""
    topology = group.topology
    hop = SIMPLE.inside * topology.intra_node.latency_seconds
    if group.nnodes > 1:
        hop = max(hop, SIMPLE.ring * topology.inter_node.latency_seconds)
    hops = math.ceil((group.size - 1) / PEERS_AT_ONCE) * hop
    seconds = load.seconds(topology, topology.intra_node.collective_efficiency)
    return [_Candidate(name, group.launch + hops + seconds, load)]


_PRICES: dict[str, Callable[[float, _Members, int], list[_Candidate]]] = {
    "all_reduce": _all_reduce,
    "barrier": lambda nbytes, group, root: _all_reduce(4, group, root),  # as in torch: one element
    "reduce_scatter": lambda nbytes, group, root: list(_rings(group, nbytes * (group.size - 1) / group.size, 1)),
    "all_gather": lambda nbytes, group, root: list(_rings(group, nbytes * (group.size - 1), 1)),
    "broadcast": lambda nbytes, group, root: list(_rings(group, nbytes, 1)),
    "reduce": lambda nbytes, group, root: list(_rings(group, nbytes, 1)),
    "all_to_all": lambda nbytes, group, root: _messages("pairwise", group, _pairwise_load(group, nbytes / group.size)),
    "gather": lambda nbytes, group, root: _messages("direct", group, _direct_load(group, root, nbytes, True)),
    "scatter": lambda nbytes, group, root: _messages(
        "direct", group, _direct_load(group, root, nbytes / group.size, False)
    ),
}
