"""The faults of a run as they happen: to whom, when, and how much longer things take."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from math import inf

from labkit.clusters.virtual.scheduler.agenda import Agenda
from labkit.clusters.virtual.scheduler.errors import Killed
from labkit.clusters.virtual.scheduler.faults import Fault, Jitter, Kill, LinkFault, Slow, check
from labkit.clusters.virtual.scheduler.network import Network
from labkit.hardware import Topology


class InjectedFaults:
    """The faults of one run, and its interrupts, which strike ranks in the same places."""

    def __init__(self, faults: Sequence[Fault], topology: Topology) -> None:
        check(faults, topology)
        self.any = bool(faults)
        """Whether anything can strike now. If not, the scheduler skips its queries."""
        self._faults = faults
        self._dies_at = [inf] * topology.world_size
        self._slow: dict[int, list[Slow]] = {}
        self._jitter: Jitter | None = None
        self._interrupted: Collection[int] = ()
        """Ranks to interrupt where they compute, sleep or have waited."""
        self._struck: set[int] = set()
        """Those of them that have been interrupted."""
        for fault in faults:
            if isinstance(fault, Kill):
                self._dies_at[fault.rank] = min(fault.at, self._dies_at[fault.rank])
            elif isinstance(fault, Slow):
                self._slow.setdefault(fault.rank, []).append(fault)
            elif isinstance(fault, Jitter):
                self._jitter = fault
        seed = self._jitter.seed if self._jitter else 0
        # one generator per rank: the actions of one rank change nothing for another
        self._computing = [random.Random(f"{seed} rank {rank}") for rank in range(topology.world_size)]
        self._messages = random.Random(f"{seed} messages")

    def plan(self, agenda: Agenda, network: Network, kill: Callable[[float, int], None]) -> None:
        """Put faults with fixed times on the agenda; `kill(time, rank)` kills a rank that waits."""
        for fault in self._faults:
            if isinstance(fault, Kill):
                agenda.at(fault.at, kill, fault.rank)
            elif isinstance(fault, LinkFault):
                channels = network.channels_of(fault.rank, fault.node)
                agenda.at(fault.at, network.slow_down, (channels, fault.factor))
                if fault.until < inf:
                    agenda.at(fault.until, network.restore, channels)

    def interrupt(self, running: Collection[int]) -> None:
        """Let KeyboardInterrupt strike each rank once while it is in `running`, until `end_interrupt`."""
        self._interrupted, self._struck, self.any = running, set(), True

    def end_interrupt(self) -> None:
        """Interrupt no further ranks."""
        self._interrupted, self.any = (), bool(self._faults)

    def strike(self, rank: int, clock: list[float]) -> None:
        """Raise Killed once the rank's time has come; its clock is then the time of its death."""
        if rank in self._interrupted and rank not in self._struck:
            self._struck.add(rank)
            raise KeyboardInterrupt
        if clock[rank] >= self._dies_at[rank]:
            clock[rank] = self._dies_at[rank]
            raise Killed

    def stretched(self, rank: int, start: float, seconds: float) -> float:
        """Seconds that this rank takes for `seconds` of computing."""
        for fault in self._slow.get(rank, ()):
            if fault.at <= start < fault.until:
                seconds *= fault.factor
        if self._jitter is not None and self._jitter.compute:
            seconds *= self._computing[rank].lognormvariate(0.0, self._jitter.compute)
        return seconds

    def latency(self, seconds: float) -> float:
        """One latency of `seconds`, with jitter."""
        if self._jitter is not None and self._jitter.latency:
            seconds *= self._messages.lognormvariate(0.0, self._jitter.latency)
        return seconds
