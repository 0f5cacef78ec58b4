"""What a submission has used up so far, by the kernel's figures, and what it may still use."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from autograder.sandbox import processes
from autograder.sandbox.cgroups import Cgroup, Parents
from autograder.sandbox.limits import Limits
from autograder.sandbox.view import SCRATCH

_GIB = 1 << 30


@dataclass(frozen=True)
class Usage:
    """What a submission has used, read outside of it. It can add to these figures, and take nothing away."""

    memory_peak_bytes: int = 0
    """Of all its processes and files in memory together. Without control groups by samples, shared memory in full."""
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
        self._began: float | None = None
        self._first: int | None = None
        self._group: Cgroup | None = None
        self._peak = self._most = self._sent = self._sent_before = self._kills = 0
        self._cpu = self._cpu_before = 0.0
        if parents is not None:
            try:
                self._group = Cgroup(parents, limits.memory_bytes, limits.processes)
            except OSError as error:
                log.info("No control group for a submission: %s", error)

    def begin(self, first: int) -> None:
        """A sandbox stands whose first process this is; it has begun nothing yet."""
        with self._lock:
            self._first = first
            self._began = self._began or time.monotonic()
            self._sent_before, self._cpu_before = self._sent, self._cpu
            if self._group is not None:
                try:
                    self._group.add(first)
                except OSError:
                    self._group.remove()
                    self._group = None

    def look(self) -> str:
        """Take in what has been used since. Returns why the submission must end; empty when it may go on."""
        with self._lock:
            if self._first is not None:
                self._take_in(self._first)
        if self._cpu > self._limits.cpu_seconds:
            return f"it used more than {self._limits.cpu_seconds} s of CPU time"
        if self._began is not None and time.monotonic() - self._began > self._limits.wall_seconds:
            return f"it took longer than {self._limits.wall_seconds:g} s"
        return self._memory_left()

    def usage(self) -> Usage:
        """As of the last look."""
        return Usage(self._peak, self._cpu, self._sent, self._most, self._kills)

    def end(self) -> None:
        """All sandboxes have ended."""
        with self._lock:
            self._first = None
            if self._group is not None:
                self._group.remove()
                self._group = None

    def _take_in(self, first: int) -> None:
        sent = processes.sent_over_loopback(first)
        if sent is not None:
            self._sent = max(self._sent, self._sent_before + sent)
        group = self._group
        seen = None
        if group is None or group.cpu_seconds() is None or group.processes() is None:
            seen = processes.look(first)
        if group is None:
            assert seen is not None
            self._peak = max(self._peak, self._memory(seen))
        else:
            self._peak = max(self._peak, group.memory_peak() or group.memory() or 0)
            self._kills = group.memory_kills()
        cpu = None if group is None else group.cpu_seconds()
        if cpu is not None:
            self._cpu = cpu
        elif seen is not None:
            self._cpu = max(self._cpu, self._cpu_before + seen.cpu_seconds)
        count = None if group is None else group.processes()
        if count is None and seen is not None:
            count = seen.threads
        self._most = max(self._most, count or 0)

    def _memory(self, seen: processes.Seen) -> int:
        """Bytes of all together, counted closely when it matters."""
        if seen.at_most <= self._limits.memory_bytes:
            return seen.at_most
        held = {pid: processes.own_memory(pid) for pid in seen.pids}
        total = sum(held.values()) + seen.scratch
        if total > self._limits.memory_bytes:
            # as the kernel does it for a control group: the largest goes, the others may go on
            first, *others = seen.pids
            self._kills += 1
            processes.kill(max(others or [first], key=lambda pid: held[pid]))
        return total

    def _memory_left(self) -> str:
        """Why there is none left even without any process: files in memory stay."""
        if self._group is not None or self._first is None:
            return ""
        limit = self._limits.memory_bytes
        kept = sum(processes.used_in(self._first, folder) for folder in SCRATCH)
        return f"its files in memory hold more than {limit / _GIB:g} GiB" if kept > limit else ""
