"""The clock of one rank, as its program reads it.

Reading it costs a little virtual time, so a loop that polls it until some moment does end.
"""

from __future__ import annotations

import math

from labkit.clusters.virtual.endpoints.endpoint import Endpoint

READ_SECONDS = 1e-7
"""Virtual time of one clock reading."""
_POLLS = 250
"""Number of readings in a row after which each costs 1/250 of the time that they took so far."""


class RankClock:
    """Seconds since the job began, as the rank's program reads them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last = math.nan
        self._polling_since = 0.0
        self._in_a_row = 0

    def read(self) -> float:
        """Return the time; reading it costs a little."""
        now = self._endpoint.now
        if now != self._last:
            self._in_a_row, self._polling_since = 0, now
        self._in_a_row += 1
        polled = self._in_a_row > _POLLS
        self._endpoint.tick((now - self._polling_since) / _POLLS if polled else READ_SECONDS)
        self._last = self._endpoint.now
        return self._last

    def look(self) -> float:
        """Return the time without cost, for torch's own purposes, which must not change the measurement."""
        return self._endpoint.now

    def sleep(self, seconds: float) -> None:
        self._endpoint.sleep(seconds)
