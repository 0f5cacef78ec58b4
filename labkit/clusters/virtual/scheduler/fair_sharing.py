"""Fair sharing of links: how fast everything moves that crosses the same links at the same time.

A flow moves over all of its channels at once, at one rate. Rates are max-min fair: no flow can get more unless another
one that has no more than it gets less (Bertsekas & Gallager, "Data Networks", 1992, 6.5.2). Networks with fair queues
in their switches divide links in this way, and TCP's connections about so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from math import inf

ROUNDING = 1e-12
"""Relative difference below which two rates, or two ends, are the same: they differ by the order of additions."""


class Channel:
    """One direction of one link: its rate, the flows on it, and when collectives have it to themselves."""

    __slots__ = ("_blocks", "busy_from", "cut_at", "flows", "free_at", "name", "rated", "seconds_per_byte", "sends",
                 "since", "watched")  # fmt: skip

    def __init__(self, name: str, bytes_per_second: float) -> None:
        self.name = name
        self.rated = self.seconds_per_byte = 1.0 / bytes_per_second
        self.cut_at = inf
        """Time from which nothing passes."""
        self.flows: dict[Flow, None] = {}
        """Flows on it, in the order in which they began."""
        self.since = 0.0
        """Time at which the last flow left it."""
        self.busy_from = self.free_at = 0.0
        """Start and end of the last time for which a collective has reserved it."""
        self._blocks: list[tuple[float, float]] = []
        """Reserved times before that one, as far as they were not over when it was reserved."""
        self.watched = inf
        """The last start or end of a reservation that was put on the agenda."""
        self.sends: Channel | None = None
        """The same link as the sends on it share it, see network.py. Created on first use."""

    def for_sends(self) -> Channel:
        if self.sends is None:
            self.sends = Channel(self.name, 1.0)
            self.sends.rated = self.rated
            self._copy_to_sends()
        return self.sends

    def set_pace(self, seconds_per_byte: float) -> None:
        self.seconds_per_byte = seconds_per_byte
        self._copy_to_sends()

    def _copy_to_sends(self) -> None:
        if self.sends is not None:
            self.sends.seconds_per_byte = self.seconds_per_byte
            self.sends.busy_from, self.sends.free_at, self.sends._blocks = self.busy_from, self.free_at, self._blocks

    def reserve(self, now: float, start: float, nbytes: float) -> float:
        """Reserve it for `nbytes` of a collective from `start` on, behind its load at `now`; return when they end."""
        free_at = self.free_at
        if free_at > start:
            start = free_at
        if self.flows:
            load = sum([flow.left_at(now) for flow in self.flows]) * self.seconds_per_byte
            blocks = *self._blocks, (self.busy_from, free_at)
            load += sum([max(end - max(begin, now), 0.0) for begin, end in blocks])
            # what moves at the pace of a slower link is not interrupted, either
            start = max(start, now + load, *[flow.due for flow in self.flows if flow.due < inf])
        if start > free_at:
            if free_at > now:
                self._blocks.append((self.busy_from, free_at))
            elif self._blocks:
                self._blocks.clear()
            self.busy_from = start
        end = self.free_at = start + nbytes * self.seconds_per_byte
        if self.sends is not None:
            self._copy_to_sends()
        return end

    def is_reserved(self, time: float) -> bool:
        """Whether a collective has it to itself."""
        if self.busy_from <= time < self.free_at:
            return True
        return any([begin <= time < end for begin, end in self._blocks])

    def next_change(self, time: float) -> float:
        """Time after `time` at which the next reservation begins or ends; infinity if none does."""
        edges = (self.busy_from, self.free_at, *[edge for block in self._blocks for edge in block])
        return min([edge for edge in edges if edge > time], default=inf)


class Flow:
    """Bytes on their way over some channels."""

    __slots__ = ("channels", "due", "entry", "left", "nbytes", "pace", "since")

    def __init__(self, channels: tuple[Channel, ...], nbytes: int) -> None:
        self.channels = channels
        self.nbytes = nbytes
        self.left: float = nbytes
        """Bytes that had not passed at `since`."""
        self.since = 0.0
        self.pace = inf
        """Seconds per byte since then."""
        self.due = inf
        """Time at which its last byte passes, at its present pace."""
        self.entry: float | None = inf
        """Time of its next entry on the agenda; None once it has ended."""

    def left_at(self, time: float) -> float:
        """Bytes that have not passed at `time`."""
        return self.left - (time - self.since) / self.pace

    def is_over(self, time: float) -> bool:
        """Whether nothing but a rounding error is left of it."""
        return self.left_at(time) <= self.nbytes * ROUNDING

    def set_rate(self, time: float, rate: float) -> None:
        """Move at `rate` bytes per second from `time` on."""
        pace = 1.0 / rate if rate else inf
        if pace != self.pace and abs(pace - self.pace) > ROUNDING * min(pace, self.pace):
            self.left, self.since, self.pace = self.left_at(time), time, pace
            self.due = time + self.left * pace

    def leave(self, time: float) -> bool:
        """End it. Returns whether others are on its channels."""
        self.entry = None
        shared = False
        for channel in self.channels:
            del channel.flows[self]
            channel.since = time
            if channel.flows:
                shared = True
        return shared


def connected(channels: Iterable[Channel]) -> tuple[dict[Channel, None], dict[Flow, None]]:
    """All flows whose rates may depend on these channels, directly or through other flows, and all their channels."""
    reached, flows = dict.fromkeys(channels), dict[Flow, None]()
    waiting = list(reached)
    for channel in waiting:
        for flow in channel.flows:
            if flow not in flows:
                flows[flow] = None
                for other in flow.channels:
                    if other not in reached:
                        reached[other] = None
                        waiting.append(other)
    return reached, flows


def fair_rates(channels: Collection[Channel], time: float) -> dict[Flow, float]:
    """The max-min fair rate of each flow on these channels, in bytes per second, which must be all of its channels.

    Progressive filling: all rates rise together until a channel is full; its flows keep their rates, the others go on.
    """
    spare = {channel: 0.0 if channel.is_reserved(time) else 1.0 / channel.seconds_per_byte for channel in channels}
    rising = {channel: len(channel.flows) for channel in channels}
    # a share only grows when others have stopped below it, so an outdated one is put back; the number breaks ties
    full = [(spare[c] / rising[c], number, c) for number, c in enumerate(channels) if rising[c]]
    heapify(full)
    rates: dict[Flow, float] = {}
    level = 0.0
    while full:
        share, number, channel = heappop(full)
        if not rising[channel]:
            continue
        present = spare[channel] / rising[channel]
        if present > share * (1 + ROUNDING):
            heappush(full, (present, number, channel))
            continue
        if share > level * (1 + ROUNDING):
            level = share
        for flow in channel.flows:
            if flow not in rates:
                rates[flow] = level
                for other in flow.channels:
                    spare[other] -= level
                    rising[other] -= 1
    return rates
