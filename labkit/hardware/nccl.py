"""NCCL's algorithms in numbers: hops one after the other, bytes on the links, and the cost of its protocols.

Counts are those of NVIDIA/nccl, src/graph/tuning.cc (Hu et al., "Demystifying NCCL", 2025; the double tree: Sanders,
Speck & Traeff 2009). The virtual cluster times messages with them, predictions are sums of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from labkit.hardware.links import Link

TREE_SHARE = 0.9
"""Bandwidth of a tree as a fraction of a ring's."""
NVLS_MEMBERS = 3
"""Minimum number of members on each node for NVLS."""


@dataclass(frozen=True)
class NcclProtocol:
    """How NCCL moves data: with flags in every word (LL), in every 128 bytes (LL128), or in whole chunks (Simple)."""

    name: str
    share: float
    share_between_nodes: float
    inside: float
    """Latency of a hop inside a node, as a multiple of the link's."""
    ring: float
    """Latency of a ring's hop between nodes, likewise."""
    tree: float


LL = NcclProtocol("LL", 0.5, 0.25, 0.2, 0.55, 1.0)
LL128 = NcclProtocol("LL128", 0.92, 0.92, 0.42, 0.8, 1.7)
SIMPLE = NcclProtocol("Simple", 1.0, 1.0, 1.13, 2.8, 2.8)
GLOO = NcclProtocol("gloo", 1.0, 1.0, 1.0, 1.0, 1.0)
"""Not one of NCCL's: messages over TCP, each of which takes the measured latency of one message."""


def protocols(link: Link) -> tuple[NcclProtocol, ...]:
    """Protocols of the library that runs over `link`, the one inside a node."""
    if link.library == "gloo":
        return (GLOO,)
    return (LL, SIMPLE) if link.name.startswith("pcie") else (LL, LL128, SIMPLE)


class Hops(NamedTuple):
    """Steps one after the other: over links inside a node, and between nodes."""

    near: int
    far: int


def ring_hops(ranks: int, nodes: int, rounds: int) -> Hops:
    """`rounds` rounds of a ring, two for an all-reduce and one for its halves: it enters and leaves a node once."""
    far = rounds * (nodes - 1)
    return Hops(rounds * (ranks - 1) - far, far)


def tree_hops(per_node: int, nodes: int) -> Hops:
    """An all-reduce along a chain in each node and a double binary tree between the nodes, up and down."""
    return Hops(2 * (per_node - 1), 2 * math.ceil(math.log2(nodes)))


def pat_hops(nodes: int) -> Hops:
    """A parallel aggregated tree (NCCL 2.23), for all-gathers and reduce-scatters with one rank per node."""
    return Hops(0, math.ceil(math.log2(nodes)))


class Traffic(NamedTuple):
    """Bytes out of and into a member's port, and a node."""

    port: float
    node: float


def tree_traffic(nbytes: float, per_node: int, nodes: int) -> Traffic:
    """Traffic of an all-reduce in a tree."""
    between = 2 * nbytes * (nodes - 1) / nodes
    inside = 2 * nbytes * (per_node - 1) / per_node
    return Traffic(inside + between / per_node, between)


def nvls_traffic(nbytes: float, per_node: int, nodes: int) -> Traffic:
    """Traffic of an all-reduce in the NVSwitch: each member holds one part of the sum, and a tree adds the nodes'."""
    between = 2 * nbytes * (nodes - 1) / nodes
    return Traffic(nbytes * (1 + 1 / per_node) + between / per_node, between)
