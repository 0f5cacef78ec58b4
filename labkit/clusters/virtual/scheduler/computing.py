"""What ranks do on their own: they compute or sleep, and their clocks advance."""

from __future__ import annotations

from labkit.clusters.virtual.scheduler.event_log import EventLog
from labkit.clusters.virtual.scheduler.injected_faults import InjectedFaults
from labkit.trace import Kind

_COMPUTE = Kind.COMPUTE.value


class Computing:
    """Advances the ranks' clocks by what they compute, slowed by faults; all up to a request is one event."""

    def __init__(self, clock: list[float], faults: InjectedFaults, log: EventLog) -> None:
        self._clock, self._faults, self._log = clock, faults, log
        self.stretches: list[tuple[float, int] | None] = [None] * len(clock)
        """Time at which each rank began to compute, and its number of operators since, until its next request."""

    def compute(self, rank: int, seconds: float, operations: int = 1) -> None:
        """Let the rank compute for `seconds`, `operations` operators."""
        stretch = self.stretches[rank]
        clock = self._clock[rank]
        self.stretches[rank] = (clock, operations) if stretch is None else (stretch[0], stretch[1] + operations)
        if self._faults.any:
            seconds = self._faults.stretched(rank, clock, seconds)
        self._clock[rank] = clock + seconds
        if self._faults.any:
            self._faults.strike(rank, self._clock)

    def computed(self, rank: int, until: float, operations: int) -> None:
        """Record that the rank has computed until that time of its clock; without injected faults."""
        stretch = self.stretches[rank]
        before = (self._clock[rank], 0) if stretch is None else stretch
        self.stretches[rank] = before[0], before[1] + operations
        self._clock[rank] = until

    def work(self, rank: int, name: str, seconds: float) -> None:
        """Let the rank do work of a known cost: an event of that name."""
        self.end(rank)
        self.compute(rank, seconds)
        self.end(rank, name)

    def sleep(self, rank: int, seconds: float) -> None:
        """Let the rank do nothing for `seconds`."""
        self.end(rank)
        self._clock[rank] += seconds
        self._faults.strike(rank, self._clock)

    def pass_until(self, rank: int, time: float) -> None:
        """Let the rank's clock, which is behind, reach the end of a wait."""
        if self.stretches[rank] is not None:
            self.end(rank)
        self._clock[rank] = time
        if self._faults.any:
            self._faults.strike(rank, self._clock)

    def end(self, rank: int, name: str = "compute") -> None:
        """End the rank's stretch of computing, if it is in one: an event of that name."""
        stretch = self.stretches[rank]
        if stretch is not None:
            self.stretches[rank] = None
            if self._log.rows is not None:
                start, operations = stretch
                row = (rank, _COMPUTE, name, start, self._clock[rank], 0, None, "", operations, "")
                self._log.rows.append(row)
