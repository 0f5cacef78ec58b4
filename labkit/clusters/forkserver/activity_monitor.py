"""Activity monitor: notices when there is no output, no operation begins or ends, and no process computes or reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Literal

from labkit.clusters.forkserver.progress import Board
from labkit.linux import proc
from labkit.linux.clock import Clock
from labkit.linux.processes import descendants

_LOOKS = 5
"""Number of checks in the time after which silence is reported."""
_LONGEST_SECONDS = 1.0
"""Maximum time between two checks."""
_BUSY_PART, _BUSY_TOGETHER = 0.05, 0.5
"""Fraction of a core that counts as computing. The second is the sum for many ranks that share few cores."""
_READ_BYTES = 64 << 10
"""Bytes read or written since the last check that count as loading data."""


class ActivityMonitor:
    """Checks the processes of one supervisor. `seconds`: length of silence that is reported; None: never.

    A rank that waits for a GPU takes CPU time: in an operation that `spins`, CPU time is no sign of activity. gloo and
    locks wait without CPU time, so there it is one: a large message under way takes CPU time too.
    """

    def __init__(self, board: Board, seconds: float | None, clock: Clock) -> None:
        self._board = board
        self._clock = clock
        self._seconds = seconds
        self._counts: dict[int, tuple[int, int]] = {}
        self._used: dict[int, tuple[float, int]] = {}
        """Seconds of CPU time, and bytes read and written, by process."""
        self._last_look = self._last_sign = clock()
        self._reported_quiet = False

    @property
    def next_look(self) -> float | None:
        """Time of the next call of `look`, on the clock."""
        return None if self._seconds is None else self._last_look + min(self._seconds / _LOOKS, _LONGEST_SECONDS)

    def broken(self) -> None:
        """Record that there was activity just now."""
        self._last_sign = self._clock()

    def look(self, running: Mapping[int, int]) -> Literal["quiet", "active", ""]:
        """Whether silence has just begun or ended. `running`: number of process -> its pid."""
        now = self._clock()
        if self._seconds is None or self.next_look is None or now < self.next_look:
            return ""
        if self._is_alive(running, now - self._last_look):
            self._last_sign = now
        self._last_look = now
        quiet = now - self._last_sign >= self._seconds
        if quiet == self._reported_quiet:
            return ""
        self._reported_quiet = quiet
        return "quiet" if quiet else "active"

    def _is_alive(self, running: Mapping[int, int], elapsed: float) -> bool:
        counts = {index: self._board.counts(index) for index in running}
        moved, self._counts = counts != self._counts, counts
        if moved:
            # the closer check is skipped as long as operations show activity
            self._used = {}
            return True
        spinning = {pid for index, pid in running.items() if any(o.spins for o in self._board.under_way(index))}
        used = {pid: _used(pid) for pid in descendants(os.getpid())}
        before, self._used = self._used, used
        if not before:
            return False
        shares = []
        for pid, (seconds, nbytes) in used.items():
            seconds_before, nbytes_before = before.get(pid, (0.0, 0))
            if nbytes - nbytes_before >= _READ_BYTES:
                return True
            if pid not in spinning:
                shares.append(seconds - seconds_before)
        # the kernel counts in ticks: two of them may be chance
        most = max(_BUSY_PART * elapsed, 2 / proc.TICKS_PER_SECOND)
        return max(shares, default=0.0) > most or sum(shares) > _BUSY_TOGETHER * elapsed


def _used(pid: int) -> tuple[float, int]:
    """Seconds of CPU time, and bytes read and written, of a process; 0 if unknown."""
    seconds, nbytes = 0.0, 0
    with contextlib.suppress(OSError):  # it may have ended, or belong to another user by now
        fields = proc.stat(pid)
        seconds = (int(fields[11]) + int(fields[12])) / proc.TICKS_PER_SECOND
        counts = proc.table(f"{pid}/io")
        nbytes = counts.get("rchar", 0) + counts.get("wchar", 0)
    return seconds, nbytes
