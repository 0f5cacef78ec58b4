"""Waiting for what other processes do: by a condition, not by a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(reached: Callable[[], object], seen: Callable[[], str] = str, seconds: float = 120.0) -> None:
    """Return once `reached()` is true; fail with the text of `seen()` if it is not within `seconds`."""
    limit = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < limit, seen()
        time.sleep(0.05)
