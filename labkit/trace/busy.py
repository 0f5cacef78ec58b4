"""Time of the ranks: computing, communication hidden behind it, exposed communication, idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from labkit.trace.events import Kind
from labkit.trace.messages import begins
from labkit.trace.trace import Trace

Span = tuple[float, float]


class RankTime(NamedTuple):
    """One rank's times in the run, in seconds. `compute + exposed + idle` is the length of the run."""

    rank: int
    compute: float
    hidden: float
    """Communication under way while the rank computed: part of `compute`, it costs nothing."""
    exposed: float
    """Communication under way while the rank did not compute."""
    idle: float
    """Neither: it waited for a late rank, or slept."""

    @property
    def overlap(self) -> float:
        """Fraction of communication that computing hides, 0 to 1; 0 without communication."""
        communication = self.hidden + self.exposed
        return self.hidden / communication if communication else 0.0

    @property
    def bubble(self) -> float:
        """Fraction of the run without computing on the rank, 0 to 1: a pipeline's bubble, (p-1)/(m+p-1) for GPipe."""
        total = self.compute + self.exposed + self.idle
        return 1 - self.compute / total if total else 0.0


def busy(trace: Trace) -> list[RankTime]:
    """Each rank's time, between the first event of all and the last.

    Communication is under way once the last of its participants has requested it: a rank that waits for a late rank is
    idle, and no faster link would help.
    """
    computing: dict[int, list[Span]] = defaultdict(list)
    communicating: dict[int, list[Span]] = defaultdict(list)
    for event, began in zip(trace.events, begins(trace), strict=True):
        if event.kind is Kind.COMPUTE:
            computing[event.rank].append((event.start, event.end))
        elif began < event.end:
            communicating[event.rank].append((began, event.end))
    seconds, times = trace.seconds, []
    for rank in range(trace.world_size):
        compute = _length(computing[rank])
        communication = _length(communicating[rank])
        either = _length([*computing[rank], *communicating[rank]])
        hidden = max(compute + communication - either, 0.0)
        idle = max(seconds - either, 0.0)
        times.append(RankTime(rank, compute, hidden, max(communication - hidden, 0.0), idle))
    return times


def _length(spans: Iterable[Span]) -> float:
    """Seconds during which at least one of `spans` runs."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
