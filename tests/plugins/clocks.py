"""Clocks for limits of the product: a test moves or starts time, so that a busy machine may be as slow as it likes."""

from __future__ import annotations

import time


class LateClock:
    """Seconds since `start`; 0 before."""

    def __init__(self) -> None:
        self._began: float | None = None

    def start(self) -> None:
        """Begin to count, unless it does already."""
        self._began = self._began or time.monotonic()

    def __call__(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began


class ManualClock:
    """Seconds that pass only by `advance`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass."""
        self._seconds += seconds

    def __call__(self) -> float:
        return self._seconds
