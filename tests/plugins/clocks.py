"""Clocks for limits of the product: a test moves or starts time, so that a busy machine may be as slow as it likes.

Those who receive one by pickle, in processes that have this folder on their path, read the same time.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from typing import Any

SLOWLY = 0.001
"""Pace of a clock on which a limit of `MOMENT` is soon over, and those of whole seconds never are while a test runs."""
MOMENT = 0.0002
_READS = 8
"""Reads of one process between which it has made at least one whole turn of its loop."""


class ManualClock:
    """Seconds that pass only by `advance`, from 0.

    It is in memory that others open who receive it: seconds so far, when it began to run, how fast, and their reads.
    """

    def __init__(self, path: str = "") -> None:
        if path:
            file, self._path = os.open(path, os.O_RDWR), path
        else:
            file = os.memfd_create("clock")
            os.ftruncate(file, 4 * 8)
            self._path = f"/proc/{os.getpid()}/fd/{file}"
        self._numbers = memoryview(mmap.mmap(file, 4 * 8)).cast("d")
        self._enough = 0.0
        if path:
            os.close(file)
        else:
            weakref.finalize(self, os.close, file)

    def __reduce__(self) -> tuple[Any, ...]:
        return ManualClock, (self._path,)

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass."""
        self._numbers[0] += seconds
        self._enough = self._numbers[3] + _READS

    @property
    def seen(self) -> bool:
        """Whether whoever reads the clock has seen the last advance, and done what was due."""
        return self._numbers[3] >= self._enough

    def __call__(self) -> float:
        self._numbers[3] += 1
        passed, began, pace, _ = self._numbers
        return passed + (time.monotonic() - began) * pace if began else passed


class LateClock(ManualClock):
    """A clock that runs by itself from `start` to `stop`. pace: its seconds in one of the wall clock, at most 1."""

    def __init__(self, pace: float = 1.0) -> None:
        super().__init__()
        self._numbers[2] = pace

    def start(self) -> None:
        """Begin to run, unless it does already."""
        self._numbers[1] = self._numbers[1] or time.monotonic()

    def stop(self) -> None:
        """Stand still."""
        now = self()
        self._numbers[1] = 0.0
        self._numbers[0] = now
