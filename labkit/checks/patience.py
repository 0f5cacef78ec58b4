"""How long a submission is waited for: a limit for each call, less once it hung, then none, and a budget for all.

Seconds are those of the clock that the calls are timed with, see `Ranks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.checks.expectations import CheckFailed
from labkit.clusters import Run

NOT_RUN = "not run"
"""What a check saw that was given up begins so."""
HANGS = 2
"""After so many calls that had to be stopped, no more are made."""


@dataclass
class Budget:
    """Seconds for all calls of a submission, of several exercises if there are any."""

    seconds: float

    @property
    def left(self) -> float:
        return max(0.0, self.seconds)


class Patience:
    """For the checks of one exercise. timeout: seconds for one call."""

    def __init__(self, timeout: float, budget: Budget | None = None) -> None:
        self._timeout = timeout
        self._budget = budget
        self._stopped: list[str] = []
        self.longest = 0.0
        """Seconds that the longest call has taken."""

    @property
    def seconds(self) -> float:
        """For the next call. Raises `CheckFailed` when none is to be made any more."""
        if len(self._stopped) >= HANGS:
            raise _given_up(f"{HANGS} calls before had to be stopped ({self._stopped[-1]})")
        seconds = self._timeout / 4 if self._stopped else self._timeout
        if self._budget is None:
            return seconds
        if not self._budget.left:
            raise _given_up("the calls before have used up the time that there is for a submission")
        return min(seconds, self._budget.left)

    def note(self, run: Run, seconds: float) -> None:
        """A call has ended, after so many seconds."""
        self.longest = max(self.longest, seconds)
        if self._budget is not None:
            self._budget.seconds -= seconds
        if run.stopped and not run.stopped.startswith("deadlock"):
            self._stopped.append(run.stopped)


def _given_up(reason: str) -> CheckFailed:
    return CheckFailed("every rank to return", f"{NOT_RUN}: {reason}")
