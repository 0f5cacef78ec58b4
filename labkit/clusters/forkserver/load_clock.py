"""A clock that corrects for load: it runs slower while its processes wait for cores that other programs use.

For each thread the kernel counts how long it ran, and how long it was ready to run but had no core. If a process
computes for a second, which takes four seconds on a busy machine, one second passes on this clock. For processes that
sleep or wait for a message it is an ordinary clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from labkit.linux import proc

_PERIOD_SECONDS = 0.1
"""Time between two readings of the kernel's figures."""
_READINGS = 11
"""Readings over which other programs' CPU time is taken: the kernel counts that in ticks of 10 ms."""
_MOST_LOST = 0.98
"""Maximum fraction of the elapsed time that is subtracted."""


@dataclass(frozen=True)
class ThreadTimes:
    """Times of one thread so far, in seconds."""

    running: float
    waiting: float
    """Seconds ready to run, without a core; only waits that have ended."""
    queued: bool = False
    """Whether it is ready to run and neither figure has changed since the last reading: it has waited all the time."""


class Kernel(Protocol):
    """Source of the figures."""

    cores: int

    def now(self) -> float:
        """Seconds of wall-clock time."""

    def threads(self) -> dict[int, ThreadTimes]:
        """All threads of the clock's processes, by their number."""

    def busy_seconds(self) -> float:
        """CPU time of all programs of this machine together on these cores."""


class LoadClock:
    """Seconds as they would pass for some processes if no other program ran. Not safe for two threads at once."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._settled = 0.0
        """Seconds on this clock until the last interval began."""
        self._last = Interval(0.0, 0.0, 0.0, 0.0)
        self._shown = 0.0
        self._read = kernel.now()
        self._threads = kernel.threads()
        self._own = 0.0
        """CPU seconds of these processes."""
        self._others = deque([(self._read, kernel.busy_seconds())], maxlen=_READINGS)
        """Time of each reading, and CPU seconds of other programs until then, except for a constant."""
        self._queued: dict[int, float] = {}
        """Seconds of each unfinished wait that are already counted, by thread."""

    def seconds(self) -> float:
        """Seconds since the clock was created."""
        now = self._kernel.now()
        if now - self._read >= _PERIOD_SECONDS:
            self._take_in(now)
        pace = self._last.pace(self._kernel.cores)
        self._shown = max(self._shown, self._settled + (self._last.elapsed + now - self._read) * pace)
        return self._shown

    def _take_in(self, now: float) -> None:
        elapsed = now - self._read
        threads = self._kernel.threads()
        queued: dict[int, float] = {}
        running = waiting = late = 0.0
        for number, thread in threads.items():
            before = self._threads.get(number)
            counted = self._queued.get(number, 0.0)
            if before is None or thread.running < before.running:  # a new one, perhaps with the number of another
                before, counted = ThreadTimes(0.0, 0.0), 0.0
            ran = thread.running - before.running
            waited = max(0.0, thread.waiting - before.waiting - counted)
            if thread.queued:
                waited += elapsed
                queued[number] = counted + elapsed
            # a wait that is longer than this interval began in the one before
            excess = min(max(0.0, ran + waited - elapsed), waited, self._last.elapsed)
            running, waiting, late = running + ran, waiting + waited - excess, late + excess
        last = replace(self._last, waiting=self._last.waiting + late)
        self._settled += last.elapsed * last.pace(self._kernel.cores)
        self._own += running
        self._others.append((now, self._kernel.busy_seconds() - self._own))
        (since, before_that), (_, by_now) = self._others[0], self._others[-1]
        taken = max(0.0, by_now - before_that) / (now - since) / self._kernel.cores
        self._last = Interval(elapsed, running, waiting, taken)
        self._read, self._threads, self._queued = now, threads, queued


@dataclass(frozen=True)
class Interval:
    """Times of some processes between two readings, in seconds, summed over all threads."""

    elapsed: float
    """Wall-clock time."""
    running: float
    waiting: float
    taken: float
    """Other programs' share of all cores."""

    def pace(self, cores: int) -> float:
        """Speed of the clock relative to the wall clock, from 0.02 to 1.

        Threads that take cores from each other do not slow it down: no more is subtracted than other programs used.
        """
        wanted = self.running + self.waiting
        if wanted <= 0:
            return 1.0
        lost = min(1.0 - self.running / min(wanted, cores * self.elapsed), self.taken, _MOST_LOST)
        return 1.0 - min(1.0, wanted / self.elapsed) * max(0.0, lost)


class LinuxKernel:
    """Figures from /proc. If the kernel does not time waiting threads, the clock is an ordinary one."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """pids: returns the present processes of the clock."""
        self._pids = pids
        self._cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self.cores = len(self._cores)
        self._figures: dict[int, bytes] = {}

    def now(self) -> float:
        return time.monotonic()

    def threads(self) -> dict[int, ThreadTimes]:
        times, figures = {}, {}
        for pid in self._pids():
            try:
                numbers = proc.threads(pid)
            except OSError:  # it has ended
                continue
            for number in numbers:
                thread = f"{pid}/task/{number}"
                with contextlib.suppress(OSError, ValueError):
                    text = figures[number] = proc.read(f"{thread}/schedstat", 256)
                    running, waiting, _ = map(int, text.split())
                    # the kernel adds a wait only when it has ended
                    queued = text == self._figures.get(number) and proc.stat(thread)[0] == b"R"
                    times[number] = ThreadTimes(running / 1e9, waiting / 1e9, queued)
        self._figures = figures
        return times

    def busy_seconds(self) -> float:
        total = 0
        with contextlib.suppress(OSError):
            for name, *fields in map(bytes.split, proc.read("stat").splitlines()):
                if name.decode() in self._cores:
                    user, nice, system, _, _, irq, soft_irq, steal = map(int, fields[:8])
                    total += user + nice + system + irq + soft_irq + steal
        return total / proc.TICKS_PER_SECOND
