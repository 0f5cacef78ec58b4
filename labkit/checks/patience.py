"""Time limits of a submission: one for each call, a shorter one after a hang, no calls after two, a budget for all.

Seconds are measured on the clock that times the calls, see `Ranks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.checks.expectations import CheckFailed
from labkit.clusters import Run

NOT_RUN = "not run"
"""Prefix of `seen` in a check that was not run."""
HANGS = 2
"""Number of stopped calls after which no more are made."""


@dataclass
class Budget:
    """Seconds for all calls of a submission, across all of its exercises."""

    seconds: float

    @property
    def left(self) -> float:
        return max(0.0, self.seconds)


class Patience:
    """Time limits for the checks of one exercise. timeout: seconds for one call."""

    def __init__(self, timeout: float, budget: Budget | None = None) -> None:
        self._timeout = timeout
        self._budget = budget
        self._stopped: list[str] = []
        self.longest = 0.0
        """Seconds of the longest call."""

    @property
    def seconds(self) -> float:
        """Limit for the next call. Raises `CheckFailed` when no more calls are allowed."""
        if len(self._stopped) >= HANGS:
            raise _given_up(f"{HANGS} earlier calls had to be stopped ({self._stopped[-1]})")
        seconds = self._timeout / 4 if self._stopped else self._timeout
        if self._budget is None:
            return seconds
        if not self._budget.left:
            raise _given_up("earlier calls have used up the time allowed for a submission")
        return min(seconds, self._budget.left)

    def note(self, run: Run, seconds: float) -> None:
        """Record a finished call and its duration in seconds."""
        self.longest = max(self.longest, seconds)
        if self._budget is not None:
            self._budget.seconds -= seconds
        if run.stopped and not run.stopped.startswith("deadlock"):
            self._stopped.append(run.stopped)


def _given_up(reason: str) -> CheckFailed:
    return CheckFailed("every rank to return", f"{NOT_RUN}: {reason}")
