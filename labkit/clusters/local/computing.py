"""When a real rank computes between its operations, by the clock of what its thread has used of a CPU.

What the program does from the end of one operation to the start of the next is one span of computing, as on virtual
ranks. A rank that sleeps or waits for something else than an operation uses no CPU, so its span is as long as what it
used, and no longer. Where ranks share cores, a rank that is ready and waits for its turn counts as computing: on the
wall clock that is what its step costs.

How many operators a span stands for is not known here, and Python counts as computing too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

MIN_SECONDS = 50e-6
"""What is shorter is Python on its way from one operation to the next, and is left out."""
_FRESH_SECONDS = 100e-6
"""Asking the system costs two microseconds, more than all else: what it said so long ago still stands."""


class Computing:
    """The spans of the thread that makes this object; other threads may call its methods, to no effect.

    `found(start, end)` is told of each, in seconds of the monotonic clock.
    """

    def __init__(self, found: Callable[[float, float], None]) -> None:
        self._found = found
        self._thread = threading.get_ident()
        self._began: float | None = None
        """When the span under way began."""
        self._looked = 0.0
        """Until when it is known how much of the span was computing, and how much it was."""
        self._known = 0.0
        self._used, self._used_at = time.thread_time(), time.monotonic()
        self._queues = _queue_file()
        self._queued, self._queued_at = self._seconds_in_queue(), self._used_at

    def begin(self, now: float) -> None:
        """The program goes on, after an operation that ended."""
        if threading.get_ident() != self._thread:
            return
        self._began, self._looked, self._known = now, now, 0.0
        if now - self._used_at > _FRESH_SECONDS:
            self._used, self._used_at = time.thread_time(), now
        if now - self._queued_at > _FRESH_SECONDS:
            self._queued, self._queued_at = self._seconds_in_queue(), now

    def end(self, now: float) -> None:
        """An operation begins, or the program waits for one."""
        if self._began is None or threading.get_ident() != self._thread:
            return
        if now - self._began >= MIN_SECONDS:
            self._look(now)
            self._tell(now)
        self._began = None

    def pause(self) -> None:
        """Somebody else's code may wait from here to `resume`, where it cannot be seen."""
        if self._began is not None and threading.get_ident() == self._thread:
            self._look(time.monotonic())

    def resume(self) -> None:
        """What was no computing since `pause` was waiting, and came before what was."""
        if self._began is None or threading.get_ident() != self._thread:
            return
        paused, now = self._looked, time.monotonic()
        waited = now - paused - self._look(now)
        if waited >= MIN_SECONDS:
            computed = now - paused - waited
            self._known -= computed
            self._tell(paused)
            self._began, self._known = paused + waited, computed

    def _tell(self, now: float) -> None:
        """What is known of the span until `now`."""
        assert self._began is not None
        seconds = now - self._began
        if self._known >= MIN_SECONDS:
            self._found(self._began, now if seconds - self._known < MIN_SECONDS else self._began + self._known)

    def _look(self, now: float) -> float:
        """Add to what is known how long the thread has computed since the last look, or was ready to; return it."""
        seconds = now - self._looked
        used = time.thread_time()
        busy, self._used, self._used_at = used - self._used, used, now
        if seconds - busy > MIN_SECONDS:
            queued = self._seconds_in_queue()
            busy += queued - self._queued
            self._queued = queued
        # it has not changed, or has just been read
        self._queued_at = self._looked = now
        busy = min(max(busy, 0.0), seconds)
        self._known += busy
        return busy

    def _seconds_in_queue(self) -> float:
        """How long this thread has been ready and had to wait for a core; 0 where the system does not say."""
        if self._queues < 0:
            return 0.0
        try:
            return int(os.pread(self._queues, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            self._queues = -1
            return 0.0


def _queue_file() -> int:
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
