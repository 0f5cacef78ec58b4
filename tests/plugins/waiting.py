"""Waiting for what other processes do: by a condition, not by a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Reached = TypeVar("Reached")

BROKEN_SECONDS = 600.0
"""What has not happened by then is broken, however busy the machine is. The only limit of a wait in a test: none says
how long something may take. It is below that of pytest-timeout, which could not say what was waited for."""


def wait_until(
    reached: Callable[[], Reached], seen: Callable[[], object] = str, pause_seconds: float = 0.05
) -> Reached:
    """Return what `reached()` returns, once that is true; fail with the text of `seen()` if it never is."""
    limit = time.monotonic() + BROKEN_SECONDS
    while not (result := reached()):
        assert time.monotonic() < limit, f"not within {BROKEN_SECONDS:g} s: {seen()}"
        time.sleep(pause_seconds)
    return result
