"""A clock that other programs cannot speed up: while its processes wait for a core that others have, it runs slower.

For each thread the kernel counts how long it ran, and how long it was ready to run and had no core. When a process
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

_PERIOD_SECONDS = 0.1
"""Between two readings of the kernel's figures."""
_READINGS = 11
"""So many are held together to know what other programs had: the kernel counts that in ticks of 10 ms."""
_MOST_LOST = 0.98
"""Of the time that passes."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Thread:
    """What one thread has had so far, in seconds."""

    running: float
    waiting: float
    """Ready to run, without a core; of waits that have ended."""
    queued: bool = False
    """Neither of them has changed since the last reading, and it is ready to run: it has waited all the time."""


class Kernel(Protocol):
    """Where the figures come from."""

    cores: int

    def now(self) -> float:
        """Seconds of wall-clock time."""

    def threads(self) -> dict[int, Thread]:
        """All threads of the processes that the clock is about, by their number."""

    def busy_seconds(self) -> float:
        """CPU time that all programs of this machine together have had on these cores."""


class LoadClock:
    """Seconds as they would pass for some processes if no other program ran. Not to be used by two threads at once."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._settled = 0.0
        """On this clock, until the last interval began."""
        self._last = Interval(0.0, 0.0, 0.0, 0.0)
        self._shown = 0.0
        self._read = kernel.now()
        self._threads = kernel.threads()
        self._own = 0.0
        """CPU seconds of these processes."""
        self._others = deque([(self._read, kernel.busy_seconds())], maxlen=_READINGS)
        """When it was read, and CPU seconds that other programs had had by then, but for a constant."""
        self._queued: dict[int, float] = {}
        """Of threads that have a wait under way: seconds of it that were counted."""

    def seconds(self) -> float:
        """Since it was made."""
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
                before, counted = Thread(0.0, 0.0), 0.0
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
    """What some processes had between two readings. In seconds; of all threads together."""

    elapsed: float
    """By the wall clock."""
    running: float
    waiting: float
    taken: float
    """The share of all cores that other programs had."""

    def pace(self, cores: int) -> float:
        """How fast the clock runs beside the wall clock, from 0.02 to 1.

        Threads that take cores from each other do not slow it down: no more is lost than what others had.
        """
        wanted = self.running + self.waiting
        if wanted <= 0:
            return 1.0
        lost = min(1.0 - self.running / min(wanted, cores * self.elapsed), self.taken, _MOST_LOST)
        return 1.0 - min(1.0, wanted / self.elapsed) * max(0.0, lost)


class LinuxKernel:
    """Figures of /proc. Where the kernel keeps none of threads that wait, the clock is an ordinary one."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """pids: the processes that the clock is about, as they are now."""
        self._pids = pids
        self._cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self.cores = len(self._cores)
        self._figures: dict[int, bytes] = {}

    def now(self) -> float:
        return time.monotonic()

    def threads(self) -> dict[int, Thread]:
        found, figures = {}, {}
        for pid in self._pids():
            try:
                numbers = os.listdir(f"/proc/{pid}/task")
            except OSError:  # it has ended
                continue
            for number in map(int, numbers):
                folder = f"/proc/{pid}/task/{number}"
                with contextlib.suppress(OSError, ValueError):
                    text = figures[number] = _read(f"{folder}/schedstat")
                    running, waiting, _ = map(int, text.split())
                    # the kernel adds a wait when it has ended
                    queued = text == self._figures.get(number) and _is_ready(_read(f"{folder}/stat"))
                    found[number] = Thread(running / 1e9, waiting / 1e9, queued)
        self._figures = figures
        return found

    def busy_seconds(self) -> float:
        total = 0
        with contextlib.suppress(OSError):
            for name, *fields in map(bytes.split, _read("/proc/stat").splitlines()):
                if name.decode() in self._cores:
                    user, nice, system, _, _, irq, soft_irq, steal = map(int, fields[:8])
                    total += user + nice + system + irq + soft_irq + steal
        return total / _TICKS


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 16)


def _is_ready(stat: bytes) -> bool:
    return stat.rpartition(b")")[2].split()[0] == b"R"
