"""What a submission has used up so far, by the kernel's figures, and what it may still use."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

from autograder.sandbox import processes
from autograder.sandbox.cgroups import Cgroup, Parents
from autograder.sandbox.limits import Limits
from labkit.clusters.warm.load_clock import LinuxKernel, LoadClock

_GIB = 1 << 30


@dataclass(frozen=True)
class Usage:
    """What a submission has used, read outside of it. It can add to these figures, and take nothing away."""

    memory_peak_bytes: int = 0
    """Of all its processes and files in memory together. Without control groups by samples, shared memory in full."""
    peak_is_exact: bool = False
    """The kernel keeps that peak: it is no sample."""
    cpu_seconds: float = 0.0
    network_bytes: int = 0
    """Sent through the loopback of its network, with the headers."""
    processes: int = 0
    """The most processes and threads at once."""
    memory_kills: int = 0
    """How many of its processes were killed since all together held too much memory."""


class Books:
    """Kept for one submission, over all the sandboxes that it has had. May be used from any thread."""

    def __init__(self, limits: Limits, parents: Parents | None, log: logging.Logger) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._sandboxes: list[_Sandbox] = []
        self._group: Cgroup | None = None
        self._peak = self._most = self._kills = 0
        self._cpu = 0.0
        self._exact = False
        self._clock = LoadClock(LinuxKernel(self._pids))
        if parents is not None:
            try:
                self._group = Cgroup(parents, limits.memory_bytes, limits.processes)
            except OSError as error:
                log.info("No control group for a submission: %s", error)

    def begin(self, first: int) -> None:
        """A sandbox stands whose first process this is; it has begun nothing yet."""
        with self._lock:
            self._sandboxes.append(_Sandbox(first, processes.born(first)))
            if self._group is not None:
                try:
                    self._group.add(first)
                except OSError:
                    self._group = None

    def look(self) -> str:
        """Take in what has been used since. Returns why the submission must end; empty when it may go on."""
        with self._lock:
            kept = self._take_in()
            seconds = self._clock.seconds()
        limits = self._limits
        if self._cpu > limits.cpu_seconds:
            return f"it used more than {limits.cpu_seconds} s of CPU time"
        if seconds > limits.wall_seconds:
            return f"it took longer than {limits.wall_seconds:g} s"
        if kept > limits.memory_bytes:  # which no end of any process would free
            return f"its files in memory hold more than {limits.memory_bytes / _GIB:g} GiB"
        return ""

    def seconds(self) -> float:
        """Time that has passed for the submission and its judge, as if no other program had taken a core from them."""
        with self._lock:
            return self._clock.seconds()

    def _pids(self) -> list[int]:
        # the judge routes messages: while it waits for a core, so does the submission
        return [os.getpid(), *(pid for one in self._sandboxes if one.is_there for pid in processes.all_of(one.first))]

    def usage(self) -> Usage:
        """As of the last look."""
        sent = sum(sandbox.sent for sandbox in self._sandboxes)
        return Usage(self._peak, self._exact, self._cpu, sent, self._most, self._kills)

    def end(self) -> None:
        """All sandboxes have ended."""
        with self._lock:
            if self._group is not None:
                self._group.remove()
                self._group = None

    def _take_in(self) -> int:
        """Returns the bytes of files in memory, where nobody else limits them."""
        for sandbox in self._sandboxes:
            sandbox.stands = sandbox.stands and sandbox.is_there
            if sandbox.stands and sandbox.own_network:
                sandbox.sent = max(sandbox.sent, processes.sent_over_loopback(sandbox.first))
        group = self._group
        peak = None if group is None else group.memory_peak()
        self._exact = peak is not None
        cpu, count = (None, None) if group is None else (group.cpu_seconds(), group.processes())
        seen: list[processes.Seen] = []
        if group is None or cpu is None or count is None:
            for sandbox in self._sandboxes:
                if sandbox.stands:
                    seen.append(processes.look(sandbox.first))
                    sandbox.cpu = max(sandbox.cpu, seen[-1].cpu_seconds)
        self._cpu = max(self._cpu, sum(sandbox.cpu for sandbox in self._sandboxes) if cpu is None else cpu)
        self._most = max(self._most, sum(one.threads for one in seen) if count is None else count)
        if group is None:
            self._peak = max(self._peak, self._memory(seen))
            return sum(one.scratch for one in seen)
        self._peak = max(self._peak, peak or group.memory() or 0)
        self._kills = group.memory_kills()
        return 0

    def _memory(self, seen: list[processes.Seen]) -> int:
        """Bytes of all together, counted closely when it matters."""
        at_most = sum(one.at_most for one in seen)
        if at_most <= self._limits.memory_bytes:
            return at_most
        held = {pid: processes.own_memory(pid) for one in seen for pid in one.pids}
        total = sum(held.values()) + sum(one.scratch for one in seen)
        if total > self._limits.memory_bytes:
            # as the kernel does it for a control group: the largest goes, the others may go on
            firsts = {sandbox.first for sandbox in self._sandboxes}
            self._kills += 1
            processes.kill(max(held.keys() - firsts or held, key=lambda pid: held[pid]))
        return total


@dataclass
class _Sandbox:
    first: int
    """Its first process."""
    born: int | None
    stands: bool = True
    sent: int = 0
    cpu: float = 0.0

    @property
    def is_there(self) -> bool:
        """Another process may have its number by now."""
        return processes.born(self.first) == self.born

    @property
    def own_network(self) -> bool:
        """Not so where a site's runner starts a client of its containers: the counter would be this machine's."""
        return processes.network(self.first) not in (None, processes.network(os.getpid()))
