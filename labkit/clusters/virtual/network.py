"""The virtual network: which links a message crosses, and how long each is busy with it.

A link serves one message after the other, in the order of their arrival, at its own rate. A message streams through
the links of its path: it may begin on the next link as soon as that link can be fed without a pause. So incast,
shared network cards and stragglers cost what they cost, without any formula for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from labkit.hardware import Topology


class Channel:
    """One direction of one link: when it is free again, and how fast it is. messages.py serves from it."""

    __slots__ = ("cut_at", "free_at", "name", "rated", "seconds_per_byte")

    def __init__(self, name: str, bytes_per_second: float) -> None:
        self.name = name
        self.rated = self.seconds_per_byte = 1.0 / bytes_per_second
        self.free_at = 0.0
        self.cut_at = math.inf
        """From then on nothing passes."""


class Route:
    """The channels from one rank to another, in order, and the latency of the whole way.

    The first `leaving` of them are the sender's: once through those, a message has left, and its send is done.
    """

    __slots__ = ("channels", "latency", "leaving")

    def __init__(self, channels: tuple[Channel, ...], leaving: int, latency: float) -> None:
        self.channels = channels
        self.leaving = leaving
        self.latency = latency


class Network:
    """All channels of a topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        port, nic = topology.intra_node.bytes_per_second, topology.inter_node.bytes_per_second
        ranks, cards = range(topology.world_size), range(topology.nics_per_node)
        self._ports = [(Channel(f"port of rank {r}, out", port), Channel(f"port of rank {r}, in", port)) for r in ranks]
        self._nics = {
            (node, card): (Channel(f"network card {card} of node {node}, out", nic),
                           Channel(f"network card {card} of node {node}, in", nic))
            for node in range(topology.nnodes) for card in cards
        }  # fmt: skip
        self._routes: dict[tuple[int, int], Route] = {}

    def route(self, source: int, destination: int) -> Route:
        """The way from `source` to `destination`: port, port inside a node; port, card, card, port between nodes."""
        route = self._routes.get((source, destination))
        if route is None:
            topology = self.topology
            out, into = self._ports[source][0], self._ports[destination][1]
            cards: tuple[Channel, ...] = ()
            if topology.node_of(source) != topology.node_of(destination):
                cards = (self._nics[topology.nic_of(source)][0], self._nics[topology.nic_of(destination)][1])
            channels = (out, *cards, into)
            latency = topology.link_between(source, destination).latency_seconds
            route = self._routes[source, destination] = Route(channels, len(channels) // 2, latency)
        return route

    def channels_of(self, rank: int | None, node: int | None) -> list[Channel]:
        """Both directions of the port of `rank`, or of every network card of `node`."""
        if rank is not None:
            return list(self._ports[rank])
        return [channel for (of, _), pair in self._nics.items() if of == node for channel in pair]

    def slow_down(self, time: float, subject: tuple[Iterable[Channel], float]) -> None:
        """From now on these channels work at a factor of their rate; at 0 nothing passes any more."""
        channels, factor = subject
        for channel in channels:
            if factor:
                channel.seconds_per_byte = channel.rated / factor
            else:
                channel.cut_at = time

    def restore(self, time: float, channels: Iterable[Channel]) -> None:
        """From now on these channels are as good as new."""
        for channel in channels:
            channel.seconds_per_byte, channel.cut_at = channel.rated, math.inf
