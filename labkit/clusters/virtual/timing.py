"""How long a library collective takes on the virtual cluster, and what it puts on the links: a table, as NCCL's.

Not used for what learners write out of sends and receives: that is timed message by message in network.py.

Every algorithm that can do a collective is priced, and the cheapest is taken, as NCCL's tuner does (NVIDIA/nccl,
src/graph/tuning.cc; Hu et al., "Demystifying NCCL", 2025; the double tree: Sanders, Speck & Traeff 2009). N ranks, n
bytes, m nodes; W is what passes each edge:

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
and 3.4 us, over the network 2.7, 4 and 14). Efficiencies stand with the links. Fitted to published runs are: four
launches of the GPU's own overhead, NVLS's 55 us, and the efficiencies of NVLink 3 and 4 and of NVLink SHARP.

Held against 94 published all-reduces on one node of A100, H100 or H200, 1 KB to 8 GB (tests/clusters/virtual/
test_published_collectives.py): the median error is 5 %, the worst 39 %, and the model is 6 % too fast on the whole.
Where it is off: eight A100s at 1 to 134 MB take up to 64 % longer than here (two sources differ there by 80 % at 1 MB
and by 20 % above); two A100s reach 85 % of the bandwidth of eight, here they are equal. Small messages on one H100 node
took 42 us where its twin with H200s took 30, as here. Between nodes 14 all-reduces that public threads quote were used,
published_between_nodes.csv: median 4 %, worst 21 % (small messages); all other collectives, B200, Ethernet, EFA and
PCIe are not held against anything measured but one size.

Not modelled: NCCL's choice of channels, NVLS for all_gather and reduce_scatter, PAT, SHARP in the network.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from labkit.hardware.topology import Hop, Topology

COLLECTIVE_LAUNCHES = 4
"""Launch overheads of the GPU that any collective costs: its kernel starts everywhere and the ranks meet."""
NVLS_SECONDS = 55e-6
"""What a collective in the NVSwitch costs on top, instead of hops."""
NVLS_MEMBERS = 3
"""Members that it needs on each node."""
PEERS_AT_ONCE = 8
"""Peers that one kernel of sends and receives serves at the same time."""
TREE_SHARE = 0.9
"""Of a ring's bandwidth, what a tree reaches."""

OutIn = tuple[float, float]


@dataclass(frozen=True)
class Protocol:
    """How NCCL moves data: with flags in every word (LL), in every 128 bytes (LL128), or in whole chunks (Simple)."""

    name: str
    share: float
    share_between_nodes: float
    inside: float
    """A hop inside a node, as a multiple of the link's latency."""
    ring: float
    """A ring's hop between nodes."""
    tree: float


LL = Protocol("LL", 0.5, 0.25, 0.2, 0.55, 1.0)
LL128 = Protocol("LL128", 0.92, 0.92, 0.42, 0.8, 1.7)
SIMPLE = Protocol("Simple", 1.0, 1.0, 1.13, 2.8, 2.8)
GLOO = Protocol("gloo", 1.0, 1.0, 1.0, 1.0, 1.0)
"""Not NCCL's: messages over TCP, each of which takes the latency that was measured for one."""


@dataclass(frozen=True)
class Plan:
    """How a collective is done, and what it costs."""

    algorithm: str
    """`ring LL128`, `nvls tree`, ..."""
    seconds: float
    """From the last member's joining to the end, on links that carry nothing else."""
    port_bytes: Mapping[int, OutIn]
    """By rank: bytes out of and into its port."""
    nic_bytes: Mapping[tuple[int, int], OutIn]
    """By (node, card)."""
    switch_bytes: Mapping[int, float]
    """By node: bytes through its switch; empty where that does not block."""
    uplink_bytes: Mapping[int, OutIn]
    """By rack; empty where uplinks do not block."""
    candidates: tuple[tuple[str, float], ...] = ()
    """All algorithms that could do it, the fastest first, with their seconds."""

    def loads(self, topology: Topology) -> Iterator[tuple[Hop, float]]:
        """Every link that it crosses, one direction each, and the bytes that it puts there."""
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
def choose(name: str, nbytes: int, ranks: tuple[int, ...], topology: Topology, root: int = 0) -> Plan:
    """The fastest algorithm for a collective among `ranks` (global ranks).

    nbytes: of the largest member's input; for all_gather and gather that is one shard, for scatter the root's whole
    input. `root` is an index into `ranks`. Raises KeyError for a collective that the table does not have.
    """
    price = _PRICES[name]
    if len(ranks) == 1:
        return Plan("nothing to do", 0.0, {}, {}, {}, {})
    offers = sorted(price(nbytes, _group(ranks, topology), root), key=lambda offer: offer.seconds)
    best = offers[0]
    return Plan(
        best.algorithm,
        best.seconds,
        best.load.ports,
        best.load.nics,
        best.load.switches,
        best.load.uplinks,
        tuple((offer.algorithm, offer.seconds) for offer in offers),
    )


# Who takes part ---------------------------------------------------------------------------------------------------


class _Group:
    """The members of a collective, and where they stand."""

    def __init__(self, ranks: tuple[int, ...], topology: Topology) -> None:
        self.ranks, self.topology = ranks, topology
        self.size = len(ranks)
        self.members: dict[int, list[int]] = {}
        """By node."""
        self.cards: dict[tuple[int, int], list[int]] = {}
        """Members by the network card that they use."""
        for rank in ranks:
            self.members.setdefault(topology.node_of(rank), []).append(rank)
            self.cards.setdefault(topology.nic_of(rank), []).append(rank)
        self.nnodes = len(self.members)
        self.racks = {topology.rack_of(node) for node in self.members}
        self.launch = COLLECTIVE_LAUNCHES * topology.gpu.launch_seconds

    def spread(self, nbytes: float) -> dict[tuple[int, int], OutIn]:
        """What each node sends, and receives, in equal parts over the cards of its members."""
        if self.nnodes == 1:
            return {}
        count = Counter(node for node, _ in self.cards)
        return {(node, card): (nbytes / count[node], nbytes / count[node]) for node, card in self.cards}


@lru_cache(maxsize=512)
def _group(ranks: tuple[int, ...], topology: Topology) -> _Group:
    return _Group(ranks, topology)


# What it puts on the links ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Load:
    """Bytes by link, and how long the busiest takes at the share of its peak that collectives reach."""

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


def _symmetric(group: _Group, port: float, node: float, edge: float, edges: Callable[[int], int]) -> _Load:
    """Every member's port carries `port`, every node sends and receives `node`, each way.

    `edges` edges of `edge` bytes go through the switch of a node with so many members. Rings, and the trees that NCCL
    builds, enter and leave a rack once, so its uplink carries what one node does.
    """
    topology = group.topology
    return _Load(
        dict.fromkeys(group.ranks, (port, port)),
        group.spread(node),
        {at: edge * edges(len(ranks)) for at, ranks in group.members.items()} if topology.switch_gb_per_s else {},
        dict.fromkeys(group.racks, (node, node)) if len(group.racks) > 1 and topology.uplink_bytes_per_second else {},
    )


def _ring_load(group: _Group, nbytes: float) -> _Load:
    """`nbytes` over each edge of the ring."""
    closed = group.nnodes == 1
    return _symmetric(group, nbytes, nbytes, nbytes, lambda members: members if closed else members - 1)


def _pairwise_load(group: _Group, piece: float) -> _Load:
    """`piece` bytes from every member to every other one."""
    topology, n = group.topology, group.size
    on_node = {node: len(ranks) for node, ranks in group.members.items()}
    on_rack = Counter(topology.rack_of(topology.node_of(rank)) for rank in group.ranks)
    cards = {card: piece * len(ranks) * (n - on_node[card[0]]) for card, ranks in group.cards.items()}
    uplinks = {rack: piece * count * (n - count) for rack, count in on_rack.items()}
    return _Load(
        dict.fromkeys(group.ranks, (piece * (n - 1), piece * (n - 1))),
        {card: (load, load) for card, load in cards.items()} if group.nnodes > 1 else {},
        {node: piece * k * (k - 1) for node, k in on_node.items()} if topology.switch_gb_per_s else {},
        {rack: (load, load) for rack, load in uplinks.items()} if topology.uplink_bytes_per_second else {},
    )


def _direct_load(group: _Group, root: int, piece: float, to_root: bool) -> _Load:
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

    return _Load(
        one_way(ports, center),
        one_way(nics, topology.nic_of(center)),
        dict(switches) if topology.switch_gb_per_s else {},
        one_way(uplinks, topology.rack_of(home)) if topology.uplink_bytes_per_second else {},
    )


# The table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Offer:
    algorithm: str
    seconds: float
    load: _Load


def _protocols(topology: Topology) -> tuple[Protocol, ...]:
    if topology.intra_node.library == "gloo":
        return (GLOO,)
    return (LL, SIMPLE) if topology.intra_node.name.startswith("pcie") else (LL, LL128, SIMPLE)


def _rings(group: _Group, edge: float, rounds: int) -> Iterator[_Offer]:
    """`edge` bytes over each edge, in `rounds` turns of the ring."""
    topology, m = group.topology, group.nnodes
    load = _ring_load(group, edge)
    seconds = load.seconds(topology, topology.intra_node.collective_efficiency)
    far = rounds * (m - 1)
    near = rounds * (group.size - 1) - far
    for protocol in _protocols(topology):
        hops = near * protocol.inside * topology.intra_node.latency_seconds
        hops += far * protocol.ring * topology.inter_node.latency_seconds
        share = protocol.share if m == 1 else protocol.share_between_nodes
        yield _Offer(f"ring {protocol.name}", group.launch + hops + seconds / share, load)


def _trees(group: _Group, nbytes: float) -> Iterator[_Offer]:
    """All-reduce along a chain in each node and a double binary tree between the nodes, up and down."""
    topology, m = group.topology, group.nnodes
    widest = max(len(ranks) for ranks in group.members.values())
    between = 2 * nbytes * (m - 1) / m
    inside = 2 * nbytes * (widest - 1) / widest
    load = _symmetric(group, inside + between / widest, between, 2 * nbytes, lambda members: members - 1)
    seconds = load.seconds(topology, topology.intra_node.collective_efficiency)
    depth = math.ceil(math.log2(m))
    for protocol in _protocols(topology):
        hops = 2 * (widest - 1) * protocol.inside * topology.intra_node.latency_seconds
        hops += 2 * depth * protocol.tree * topology.inter_node.latency_seconds
        share = TREE_SHARE * protocol.share_between_nodes
        yield _Offer(f"tree {protocol.name}", group.launch + hops + seconds / share, load)


def _nvls(group: _Group, nbytes: float) -> Iterator[_Offer]:
    """All-reduce in the NVSwitch; each member holds one part of the sum, the nodes' sums are joined along a tree."""
    topology, m = group.topology, group.nnodes
    counts = {len(ranks) for ranks in group.members.values()}
    width = max(counts)
    if not topology.intra_node.reduction_efficiency or len(counts) > 1 or width < NVLS_MEMBERS:
        return
    between = 2 * nbytes * (m - 1) / m
    load = _symmetric(group, nbytes * (1 + 1 / width) + between / width, between, nbytes, lambda members: members)
    hops = NVLS_SECONDS
    if m > 1:
        hops += 2 * math.ceil(math.log2(m)) * SIMPLE.tree * topology.inter_node.latency_seconds
    seconds = group.launch + hops + load.seconds(topology, topology.intra_node.reduction_efficiency)
    yield _Offer("nvls" if m == 1 else "nvls tree", seconds, load)


def _all_reduce(nbytes: float, group: _Group, root: int) -> list[_Offer]:
    offers = [*_rings(group, 2 * nbytes * (group.size - 1) / group.size, 2), *_nvls(group, nbytes)]
    return [*offers, *_trees(group, nbytes)] if group.nnodes > 1 else offers


def _messages(name: str, group: _Group, load: _Load) -> list[_Offer]:
    """Sends and receives straight between members, `PEERS_AT_ONCE` at a time."""
    topology = group.topology
    hop = SIMPLE.inside * topology.intra_node.latency_seconds
    if group.nnodes > 1:
        hop = max(hop, SIMPLE.ring * topology.inter_node.latency_seconds)
    hops = math.ceil((group.size - 1) / PEERS_AT_ONCE) * hop
    seconds = load.seconds(topology, topology.intra_node.collective_efficiency)
    return [_Offer(name, group.launch + hops + seconds, load)]


_PRICES: dict[str, Callable[[float, _Group, int], list[_Offer]]] = {
    "all_reduce": _all_reduce,
    "barrier": lambda nbytes, group, root: _all_reduce(4, group, root),  # as torch does it: one element
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
