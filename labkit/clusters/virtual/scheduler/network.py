"""The virtual network: the links that a message crosses, and how long each is busy with it.

A link serves one message after the other, in the order of their arrival, at its own rate. A message streams through
the links of its path: it may begin on the next link as soon as that link can be fed without a pause. So incast,
shared network cards and stragglers have their cost without any formula for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from labkit.clusters.virtual.scheduler.nccl_cost_model import CollectivePlan
from labkit.hardware.topology import Hop, Topology


class Channel:
    """One direction of one link: when it is free again, and how fast it is. Used by messages.py."""

    __slots__ = ("cut_at", "free_at", "name", "rated", "seconds_per_byte")

    def __init__(self, name: str, bytes_per_second: float) -> None:
        self.name = name
        self.rated = self.seconds_per_byte = 1.0 / bytes_per_second
        self.free_at = 0.0
        self.cut_at = math.inf
        """Time from which nothing passes."""


class Route:
    """The channels from one rank to another, in order, and the latency of the whole way.

    The first `leaving` of them are the sender's: a message that has passed those has left, and its send is done.
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
        self._channels: dict[str, Channel] = {}
        self._routes: dict[tuple[int, int], Route] = {}
        self._loads: dict[int, tuple[CollectivePlan, list[tuple[Channel, float]]]] = {}
        """Each collective's load on the channels, by the identity of its plan."""

    def channel(self, hop: Hop) -> Channel:
        """The channel of this name, created on first use."""
        channel = self._channels.get(hop.name)
        if channel is None:
            channel = self._channels[hop.name] = Channel(hop.name, hop.bytes_per_second)
        return channel

    def route(self, source: int, destination: int) -> Route:
        """The route from `source` to `destination`, see `Topology.path`."""
        route = self._routes.get((source, destination))
        if route is None:
            leaving, arriving = self.topology.path(source, destination)
            channels = tuple(self.channel(hop) for hop in (*leaving, *arriving))
            latency = self.topology.link_between(source, destination).latency_seconds
            route = self._routes[source, destination] = Route(channels, len(leaving), latency)
        return route

    def carry(self, plan: CollectivePlan, start: float) -> tuple[float, str]:
        """Put a collective's bytes on its links, behind their present load.

        Returns when the last byte is through, and the name of a cut link, if the collective needs one.
        """
        known = self._loads.get(id(plan))
        if known is None:
            loads = [(self.channel(hop), nbytes) for hop, nbytes in plan.loads(self.topology) if nbytes]
            known = self._loads[id(plan)] = plan, loads
        latest = start
        for channel, nbytes in known[1]:
            if channel.cut_at <= start:
                return start, channel.name
            free_at = channel.free_at
            free_at = channel.free_at = (start if start > free_at else free_at) + nbytes * channel.seconds_per_byte
            if free_at > latest:
                latest = free_at
        return latest, ""

    def channels_of(self, rank: int | None, node: int | None) -> list[Channel]:
        """Both directions of the port of `rank`, or of every network card of `node`."""
        if rank is not None:
            return [self.channel(hop) for hop in self.topology.port(rank)]
        assert node is not None
        return [
            self.channel(hop) for card in range(self.topology.nics_per_node) for hop in self.topology.nic(node, card)
        ]

    def slow_down(self, time: float, subject: tuple[Iterable[Channel], float]) -> None:
        """Slow these channels to a factor of their rate from now on; at 0 nothing passes any more."""
        channels, factor = subject
        for channel in channels:
            if factor:
                channel.seconds_per_byte = channel.rated / factor
            else:
                channel.cut_at = time

    def restore(self, time: float, channels: Iterable[Channel]) -> None:
        """Restore these channels' full rate."""
        for channel in channels:
            channel.seconds_per_byte, channel.cut_at = channel.rated, math.inf
