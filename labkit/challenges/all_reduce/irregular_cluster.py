"""Irregular clusters of the all-reduce challenge: those that are published, others of the same family, and a bound.

A cluster has nodes with one network card each, at unequal rates, or one node whose ranks have unequal ports. One of
them is slow. Racks, if there are any, are joined by uplinks that carry less than their cards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from labkit.clusters.virtual import link
from labkit.clusters.virtual.scheduler.faults import Fault
from labkit.hardware import Topology, topology

NBYTES = 4 << 20
"""Size of the tensor."""


class ClusterFigures(TypedDict):
    """The cluster as an entry sees it. Rates are of one direction, in 1e9 bytes per second."""

    nodes: list[list[int]]
    """The ranks of each node."""
    racks: list[list[int]]
    """The nodes of each rack; all in one if there are no racks."""
    port_gb_per_s: list[float]
    """Rate of each rank's port to the other ranks of its node."""
    card_gb_per_s: list[float]
    """Rate of each node's network card, which its ranks share."""
    uplink_gb_per_s: list[float]
    """Rate of each rack's uplink; empty if there is one rack."""
    latency_seconds: list[float]
    """Latency of a message inside a node, and of one between nodes."""


@dataclass(frozen=True)
class IrregularCluster:
    """A cluster whose links are slower than its hardware by known factors."""

    name: str
    nnodes: int
    nproc_per_node: int
    card_factors: tuple[float, ...] = ()
    """Factor of each node's card; empty: all work at their full rate."""
    port_factors: tuple[float, ...] = ()
    """Factor of each rank's port; empty: all work at their full rate."""
    nodes_per_rack: int | None = None
    oversubscription: float = 1.0

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def topology(self) -> Topology:
        """Return the hardware without the factors: A100s, NVLink 3 in nodes, an InfiniBand HDR card each."""
        return topology(
            nnodes=self.nnodes,
            nproc_per_node=self.nproc_per_node,
            nodes_per_rack=self.nodes_per_rack,
            oversubscription=self.oversubscription,
        )

    @property
    def faults(self) -> list[Fault]:
        """Return the factors as faults of the virtual cluster."""
        cards = [link(node=node, factor=factor) for node, factor in enumerate(self.card_factors) if factor != 1]
        return [*cards, *(link(rank=rank, factor=factor) for rank, factor in enumerate(self.port_factors))]

    def figures(self) -> ClusterFigures:
        """Return the cluster as an entry sees it."""
        hardware = self.topology
        nodes = [[rank for rank in range(self.world_size) if hardware.node_of(rank) == n] for n in range(self.nnodes)]
        racks: dict[int, list[int]] = {}
        for node in range(self.nnodes):
            racks.setdefault(hardware.rack_of(node), []).append(node)
        uplink = hardware.uplink_bytes_per_second
        return {
            "nodes": nodes,
            "racks": list(racks.values()),
            "port_gb_per_s": [hardware.intra_node.gb_per_s * f for f in self.port_factors or (1,) * self.world_size],
            "card_gb_per_s": [hardware.inter_node.gb_per_s * f for f in self.card_factors or (1,) * self.nnodes],
            "uplink_gb_per_s": [] if uplink is None or len(racks) == 1 else [uplink / 1e9] * len(racks),
            "latency_seconds": [hardware.intra_node.latency_seconds, hardware.inter_node.latency_seconds],
        }

    def describe(self) -> str:
        """`4 nodes x 2 ranks; cards at 1, 1, 0.25, 1 of 25 GB/s`."""
        figures = self.figures()
        parts = [f"{self.nnodes} node{'s' * (self.nnodes > 1)} x {self.nproc_per_node} ranks"]
        for what, values in (("cards", figures["card_gb_per_s"]), ("ports", figures["port_gb_per_s"])):
            if len(set(values)) > 1 or (what == "cards" and self.nnodes > 1):
                parts.append(f"{what} of {', '.join(f'{value:.4g}' for value in values)} GB/s")
        if figures["uplink_gb_per_s"]:
            parts.append(f"racks of {self.nodes_per_rack} nodes, uplinks of {figures['uplink_gb_per_s'][0]:.4g} GB/s")
        return "; ".join(parts)


def lower_bound(cluster: IrregularCluster, nbytes: int = NBYTES) -> float:
    """Return seconds that no all-reduce of `nbytes` incompressible bytes can beat on this cluster.

    Take the ranks, the nodes or the racks as units, P of them, and let c be the rate at which a unit is joined to the
    others. Each unit must send its own sum and receive that of the others, nbytes either way: nbytes / min(c). And each
    element takes at least P - 1 messages between units until some unit knows its sum, and P - 1 more until all do, so
    together they send 2(P-1) nbytes: 2(P-1) nbytes / sum(c). The last byte arrives one latency after it was sent.
    """
    figures = cluster.figures()
    levels = [figures["port_gb_per_s"]]
    if cluster.nnodes > 1:
        levels.append(figures["card_gb_per_s"])
    if figures["uplink_gb_per_s"]:
        levels.append(figures["uplink_gb_per_s"])
    between = figures["latency_seconds"][cluster.nnodes > 1]
    return between + max(max(1 / min(c), 2 * (len(c) - 1) / sum(c)) * nbytes / 1e9 for c in levels)


PUBLISHED = (
    IrregularCluster("slow node", 4, 2, (1.0, 1.0, 0.25, 1.0)),
    IrregularCluster("unequal cards", 5, 2, (1.0, 0.75, 0.5, 1.0, 0.6)),
    IrregularCluster("racks", 4, 2, (1.0, 0.8, 1.0, 0.5), nodes_per_rack=2, oversubscription=4.0),
    IrregularCluster("slow port", 1, 8, port_factors=(0.1, 0.1, 0.06, 0.1, 0.08, 0.03, 0.1, 0.07)),
)
"""Clusters that are published with the challenge."""


def drawn(seed: int) -> tuple[IrregularCluster, ...]:
    """Draw one cluster of each kind in `PUBLISHED`, with other sizes, rates and places of the slow node."""
    draw = random.Random(seed)

    def factors(count: int, low: float, slowest: float) -> tuple[float, ...]:
        values = [round(draw.uniform(low, 1.0), 2) for _ in range(count)]
        values[draw.randrange(count)] = slowest
        return tuple(values)

    kinds: tuple[Callable[[], IrregularCluster], ...] = (
        lambda: _nodes("slow node", draw.randint(3, 5), factors, 0.9, round(draw.uniform(0.2, 0.35), 2)),
        lambda: _nodes("unequal cards", draw.randint(4, 5), factors, 0.6, round(draw.uniform(0.45, 0.55), 2)),
        lambda: IrregularCluster(
            "racks", 4, 2, factors(4, 0.75, 0.5), nodes_per_rack=2, oversubscription=draw.choice([3.0, 4.0, 5.0])
        ),
        lambda: IrregularCluster(
            "slow port", 1, n := draw.randint(5, 8), port_factors=tuple(f / 10 for f in factors(n, 0.6, 0.3))
        ),
    )
    return tuple(make() for make in kinds)


def _nodes(
    name: str, count: int, factors: Callable[[int, float, float], tuple[float, ...]], low: float, slowest: float
) -> IrregularCluster:
    return IrregularCluster(name, count, 2, factors(count, low, slowest))
