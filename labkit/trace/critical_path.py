"""The critical path: the chain of events that determined when the run ended.

It is followed backwards from the last event. A message begins when both sides have requested it, a collective when its
last rank has joined, so the chain continues at the rank that came last. An earlier message on the same sender or
receiver, or an earlier collective of the same group, that ended only after that, delayed the event and is next. (Where
links of different speed meet in one rank, the earlier one need not have been in the way: then the chain may take a
neighbour's message, of the same time. Messages that share a link delay one another: the chain takes the earlier one.)
Before computing comes the rank's previous event. As in Böhme et al., "Scalable critical-path based performance
analysis" (IPDPS 2012), with waiting for links added.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from labkit.trace.events import Event, Kind
from labkit.trace.messages import parties
from labkit.trace.trace import Trace


class Step(NamedTuple):
    """A section of the critical path, on one rank."""

    rank: int
    kind: Kind | None
    """Kind of event; None if nothing was recorded: the rank waited, slept or, with measured times, computed."""
    start: float
    end: float
    event: Event | None
    """The event that this is a part of."""


@dataclass(frozen=True)
class CriticalPath:
    """Steps from the first event's start to the last one's end, without gaps."""

    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        return self.steps[-1].end - self.steps[0].start if self.steps else 0.0

    @property
    def compute(self) -> float:
        """Seconds of computing, which a faster GPU shortens."""
        return sum(step.end - step.start for step in self.steps if step.kind is Kind.COMPUTE)

    @property
    def waiting(self) -> float:
        """Seconds without a recorded event on the rank that all others waited for."""
        return sum(step.end - step.start for step in self.steps if step.kind is None)

    @property
    def communication(self) -> float:
        """Seconds of messages and collectives under way, which faster links shorten."""
        return max(self.seconds - self.compute - self.waiting, 0.0)


def critical_path(trace: Trace) -> CriticalPath:
    """The chain of events of `trace` that determined its end. Empty for an empty trace."""
    if not trace.events:
        return CriticalPath(())
    return CriticalPath(tuple(reversed(_Walk(trace).back())))


_ORDER = (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.COMPUTE)
"""Kinds, of which the last comes first among events with the same end: a rank that computed until then did not wait."""


class _Walk:
    """State of the walk, and its lookup tables."""

    def __init__(self, trace: Trace) -> None:
        self.events = trace.events
        self.parties = parties(trace)
        self.now = max(event.end for event in self.events)
        self.steps: list[Step] = []
        self.seen: set[int] = set()
        # indices of events, sorted by the events' ends: of each rank, and of each queue
        self.of_rank: dict[int, list[int]] = defaultdict(list)
        self.queues: dict[tuple[int, Kind, str], list[int]] = defaultdict(list)
        for number in sorted(range(len(self.events)), key=self._end):
            self.of_rank[self.events[number].rank].append(number)
            if self.events[number].kind is not Kind.COMPUTE:
                self.queues[self._queue(number)].append(number)

    def back(self) -> list[Step]:
        """Steps from the last to the first."""
        beginning = min(event.start for event in self.events)
        number: int | None = max(range(len(self.events)), key=self._end)
        while number is not None:
            self.seen.add(number)
            event = self.events[number]
            began = max(self.events[party].start for party in self.parties[number])
            held_up = self._held_up_by(number, began)
            if held_up is not None:
                self._step(event.rank, self.events[held_up].end, event)
                number = held_up
                continue
            self._step(event.rank, began, event)
            rank, number = self._came_last(number)
            self._step(rank, beginning if number is None else self.events[number].end, None)
        return self.steps

    def _step(self, rank: int, start: float, event: Event | None) -> None:
        if start < self.now:
            self.steps.append(Step(rank, event.kind if event else None, start, self.now, event))
            self.now = start

    def _came_last(self, number: int) -> tuple[int, int | None]:
        """The rank that came last, and its previous event; of several, the rank with the latest previous event."""
        came: list[tuple[float, bool, int, int | None]] = []
        latest = max(self.events[party].start for party in self.parties[number])
        for party in self.parties[number]:
            rank = self.events[party].rank
            if self.events[party].start == latest:
                before = self._before(self.of_rank[rank], self.now)
                until = float("-inf") if before is None else self.events[before].end
                came.append((until, party == number, -rank, before))
        _, _, rank, before = max(came, key=lambda c: c[:3])
        return -rank, before

    def _held_up_by(self, number: int, began: float) -> int | None:
        """The event served before it that ended only after all sides had requested it."""
        if self.events[number].kind is Kind.COMPUTE:
            return None
        candidates = []
        for party in self.parties[number]:
            end = min(self.now, self.events[party].end)  # events that its own queue served after it did not delay it
            earlier = self._before(self.queues[self._queue(party)], end, strictly=True)
            if earlier is not None and self.events[earlier].end > began:
                candidates.append(earlier)
        return max(candidates, key=self._end, default=None)

    def _before(self, numbers: list[int], time: float, strictly: bool = False) -> int | None:
        """The last of `numbers` that ended by `time` (`strictly`: before) and has not been visited."""
        place = bisect_right(numbers, time, key=lambda number: self.events[number].end) - 1
        while place >= 0:
            number = numbers[place]
            if number not in self.seen and not (strictly and self.events[number].end >= time):
                return number
            place -= 1
        return None

    def _queue(self, number: int) -> tuple[int, Kind, str]:
        event = self.events[number]
        return event.rank, event.kind, event.group if event.kind is Kind.COLLECTIVE else ""

    def _end(self, number: int) -> tuple[float, int, int]:
        event = self.events[number]
        return event.end, _ORDER.index(event.kind), -event.rank
