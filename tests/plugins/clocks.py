"""A clock for time limits: a test decides when the time begins, so that a busy machine may start ranks slowly."""

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
