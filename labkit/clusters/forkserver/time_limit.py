"""The time limit of a run, enforced by its client: the supervisor is asked to stop all, and has a while to do so."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from labkit.clusters.forkserver.session import Session
from labkit.linux.clock import Clock, wait_seconds

NO_ANSWER = "the process that watches over the ranks does not answer"


class TimeLimit:
    """timeout: seconds from now until all are stopped; None: never. patience: seconds for the supervisor to do so."""

    def __init__(self, clock: Clock, timeout: float | None, patience: float) -> None:
        self._clock = clock
        self._at = None if timeout is None else clock() + timeout
        self._patience = patience
        self._notified = False

    @property
    def wait(self) -> float | None:
        """Wall-clock seconds until the next call of `look`."""
        return wait_seconds(self._clock, self._at)

    @property
    def left(self) -> float | None:
        """Seconds of the clock until the next call of `look`."""
        return None if self._at is None else max(0.0, self._at - self._clock())

    @property
    def is_over(self) -> bool:
        return self._at is not None and self._clock() >= self._at

    def look(self, sessions: Sequence[Session]) -> str:
        """Notify the supervisors on a timeout. Returns the reason to stop waiting for them, or an empty string."""
        if self._at is None or not self.is_over:
            return ""
        if self._notified:
            return NO_ANSWER
        self._notified = True
        self._at += self._patience
        for session in sessions:
            with contextlib.suppress(OSError):  # it has ended
                session.send({"kind": "limit", "seconds": 0.0})
        return ""
