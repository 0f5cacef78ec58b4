"""Resource accounting: a submission's use so far, by the kernel's figures, compared with its limits."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autograder.sandbox import processes
from autograder.sandbox.cgroups import Cgroup, Parents
from autograder.sandbox.limits import Limits
from labkit.linux.processes import send_signal

_GIB = 1 << 30


@dataclass(frozen=True)
class Usage:
    """Resource usage of a submission, measured from outside. The submission can only increase these figures."""

    memory_peak_bytes: int = 0
    """Peak of all its processes and in-memory files together. Without control groups sampled, shared memory in full."""
    peak_is_exact: bool = False
    """Whether the kernel recorded the peak, rather than samples."""
    cpu_seconds: float = 0.0
    network_bytes: int = 0
    """Bytes sent over the loopback of its network, with headers."""
    processes: int = 0
    """Maximum number of simultaneous processes and threads."""
    memory_kills: int = 0
    """Number of its processes killed because all together held too much memory."""


class ResourceAccounting:
    """Resource accounting of one submission over all its sandboxes. Thread-safe."""

    def __init__(
        self,
        limits: Limits,
        parents: Parents | None,
        log: logging.Logger,
        make_clock: Callable[[Callable[[], Iterable[int]]], Callable[[], float]],
    ) -> None:
        """make_clock: returns the clock of the time limits, given a function that returns its processes."""
        self._limits = limits
        self._lock = threading.Lock()
        self._sandboxes: list[_Sandbox] = []
        self._group: Cgroup | None = None
        self._peak = self._most = self._kills = 0
        self._cpu = 0.0
        self._exact = False
        self._clock = make_clock(self._pids)
        if parents is not None:
            try:
                self._group = Cgroup.new(parents, limits.memory_bytes, limits.processes)
            except OSError as error:
                log.info("No control group for a submission: %s", error)

    def begin(self, first: int) -> None:
        """Register a sandbox by its first process, before anything runs in it."""
        with self._lock:
            self._sandboxes.append(_Sandbox(first, processes.born(first)))
            if self._group is not None:
                try:
                    self._group.add(first)
                except OSError:
                    self._group = None

    def look(self) -> str:
        """Update the usage. Returns why the submission must end; empty when it may go on."""
        with self._lock:
            kept = self._take_in()
            seconds = self._clock()
        limits = self._limits
        if self._cpu > limits.cpu_seconds:
            return f"it used more than {limits.cpu_seconds} s of CPU time"
        if seconds > limits.wall_seconds:
            return f"it took longer than {limits.wall_seconds:g} s"
        if kept > limits.memory_bytes:  # ending processes would not free it
            return f"its files in memory hold more than {limits.memory_bytes / _GIB:g} GiB"
        return ""

    def seconds(self) -> float:
        """Return the seconds passed for the submission and its judge, as if no other program had used their cores."""
        with self._lock:
            return self._clock()

    def _pids(self) -> list[int]:
        # the judge routes messages: while it waits for a core, so does the submission
        return [
            os.getpid(),
            *(pid for sandbox in self._sandboxes if sandbox.is_there for pid in processes.all_of(sandbox.first)),
        ]

    def usage(self) -> Usage:
        """Return the usage as of the last look."""
        sent = sum(sandbox.sent for sandbox in self._sandboxes)
        return Usage(self._peak, self._exact, self._cpu, sent, self._most, self._kills)

    def end(self) -> None:
        """Finish after all sandboxes have ended."""
        with self._lock:
            if self._group is not None:
                self._group.remove()
                self._group = None

    def _take_in(self) -> int:
        """Update the usage; return the bytes of in-memory files if nothing else limits them."""
        for sandbox in self._sandboxes:
            sandbox.stands = sandbox.stands and sandbox.is_there
            if sandbox.stands and sandbox.own_network:
                sandbox.sent = max(sandbox.sent, processes.sent_over_loopback(sandbox.first))
        group = self._group
        peak = None if group is None else group.memory_peak()
        self._exact = peak is not None
        cpu, count = (None, None) if group is None else (group.cpu_seconds(), group.processes())
        seen: list[processes.ResourceSample] = []
        if group is None or cpu is None or count is None:
            for sandbox in self._sandboxes:
                if sandbox.stands:
                    seen.append(processes.look(processes.all_of(sandbox.first)))
                    sandbox.cpu = max(sandbox.cpu, seen[-1].cpu_seconds)
        self._cpu = max(self._cpu, sum(sandbox.cpu for sandbox in self._sandboxes) if cpu is None else cpu)
        self._most = max(self._most, sum(sample.threads for sample in seen) if count is None else count)
        if group is None:
            self._peak = max(self._peak, self._memory(seen))
            return sum(sample.scratch for sample in seen)
        self._peak = max(self._peak, peak or group.memory() or 0)
        self._kills = group.memory_kills()
        return 0

    def _memory(self, seen: list[processes.ResourceSample]) -> int:
        """Return the bytes of all processes together, counted precisely when it matters."""
        at_most = sum(sample.at_most for sample in seen)
        if at_most <= self._limits.memory_bytes:
            return at_most
        held = {pid: processes.own_memory(pid) for sample in seen for pid in sample.pids}
        total = sum(held.values()) + sum(sample.scratch for sample in seen)
        if total > self._limits.memory_bytes:
            # as the kernel does for a control group: end the largest, let the others go on
            firsts = {sandbox.first for sandbox in self._sandboxes}
            self._kills += 1
            send_signal(max(held.keys() - firsts or held, key=lambda pid: held[pid]), signal.SIGKILL)
        return total


@dataclass
class _Sandbox:
    first: int
    """PID of its first process."""
    born: int | None
    stands: bool = True
    sent: int = 0
    cpu: float = 0.0

    @property
    def is_there(self) -> bool:
        """Whether the first process still runs; another process may have its number by now."""
        return processes.born(self.first) == self.born

    @property
    def own_network(self) -> bool:
        """Whether the network is its own. If a site's runner starts a container client, it is this machine's."""
        return processes.network(self.first) not in (None, processes.network(os.getpid()))
