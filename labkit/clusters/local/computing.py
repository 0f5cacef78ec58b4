"""Compute time of a real rank between its operations, from its thread's CPU time.

The program's work from the end of one operation to the start of the next is one span of computing, as on virtual ranks.
A rank that sleeps or waits for something other than an operation uses no CPU, so its span is only as long as its CPU
time. Where ranks share cores, a rank that is ready and waits for a core counts as computing: its step costs that much
on the wall clock.

The number of operators in a span is unknown here, and Python counts as computing too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

MIN_SECONDS = 50e-6
"""Minimum length of a span: shorter ones are Python on its way from one operation to the next, and are left out."""
_FRESH_SECONDS = 100e-6
"""Age up to which a reading is reused: a query of the system costs two microseconds, more than all else."""


class Computing:
    """The spans of the thread that creates this object; calls of its methods in other threads have no effect.

    `found(start, end)` is called for each, in seconds of the monotonic clock.
    """

    def __init__(self, found: Callable[[float, float], None]) -> None:
        self._found = found
        self._thread = threading.get_ident()
        self._began: float | None = None
        """Start of the current span."""
        self._looked = 0.0
        """Time up to which the current span's compute time, `_known`, has been measured."""
        self._known = 0.0
        self._used, self._used_at = time.thread_time(), time.monotonic()
        self._queues = _queue_file()
        self._queued, self._queued_at = self._seconds_in_queue(), self._used_at

    def begin(self, now: float) -> None:
        """Record that the program goes on, after the end of an operation."""
        if threading.get_ident() != self._thread:
            return
        self._began, self._looked, self._known = now, now, 0.0
        if now - self._used_at > _FRESH_SECONDS:
            self._used, self._used_at = time.thread_time(), now
        if now - self._queued_at > _FRESH_SECONDS:
            self._queued, self._queued_at = self._seconds_in_queue(), now

    def end(self, now: float) -> None:
        """Record that an operation begins, or that the program waits for one."""
        if self._began is None or threading.get_ident() != self._thread:
            return
        if now - self._began >= MIN_SECONDS:
            self._look(now)
            self._tell(now)
        self._began = None

    def pause(self) -> None:
        """Record that code of others may wait, unobserved, from here to `resume`."""
        if self._began is not None and threading.get_ident() == self._thread:
            self._look(time.monotonic())

    def resume(self) -> None:
        """Count the non-compute time since `pause` as a wait, which came before the computing."""
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
        """Report the span until `now`, as measured."""
        assert self._began is not None
        seconds = now - self._began
        if self._known >= MIN_SECONDS:
            self._found(self._began, now if seconds - self._known < MIN_SECONDS else self._began + self._known)

    def _look(self, now: float) -> float:
        """Add the time since the last look during which the thread computed or was ready to, and return it."""
        seconds = now - self._looked
        used = time.thread_time()
        busy, self._used, self._used_at = used - self._used, used, now
        if seconds - busy > MIN_SECONDS:
            queued = self._seconds_in_queue()
            busy += queued - self._queued
            self._queued = queued
        # unchanged, or just read
        self._queued_at = self._looked = now
        busy = min(max(busy, 0.0), seconds)
        self._known += busy
        return busy

    def _seconds_in_queue(self) -> float:
        """Total time that this thread was ready and waited for a core; 0 if the system does not count it."""
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
