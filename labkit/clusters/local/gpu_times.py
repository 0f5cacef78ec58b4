"""Times of a rank's GPU work on the host's clock: only arithmetic over marks.

A mark is a CUDA event. Marks are read once they have been reached, so that nothing waits for the GPU while the program
runs. Two moments are known on both clocks, one early and one late; in between the GPU's clock is assumed to be linear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MIN_SECONDS = 5e-6
"""Minimum length of computing; anything shorter is the pause between two marks."""
_REFERENCE_SECONDS = 5.0
"""CUDA measures the time between two events with 24 bits: over longer times microseconds are lost."""


class Mark(Protocol):
    """A point on a stream, with the interface of `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the GPU has reached it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to another mark; both must have been reached."""


class _Pending(NamedTuple):
    start: Mark
    end: Mark
    asked: float
    """Time of the request in seconds on the host's clock: it cannot have begun sooner."""
    operation: int
    """Row of the operation; -1 for computing."""
    reached: Callable[[], None]
    kept: Any
    """Objects that must not be freed before."""


class GpuTimes:
    """Times of one GPU's work, between marks. Safe to use from any thread."""

    def __init__(self, mark: Mark, host: float, most: int) -> None:
        """`mark` was reached at `host`, in seconds on the host's clock. `most`: limit on operations and spans."""
        self._most = most
        self._reference, self._reference_at = mark, 0.0
        self._anchors = [(0.0, host)]
        self._pending: list[_Pending] = []
        self._known: list[tuple[int, float, float, float]] = []
        """Finished pieces: row, time of request on the host's clock, start and end on the GPU's, in seconds."""
        self._computing: tuple[Mark, float] | None = (mark, host)
        self._lock = threading.Lock()

    def operation(self, row: int, start: Mark, end: Mark, asked: float, reached: Callable[[], None], kept: Any) -> None:
        """Record an operation from `start` to `end`; `reached` is called when it is known to be over."""
        with self._lock:
            self._pending.append(_Pending(start, end, asked, row, reached, kept))

    def computing_ends(self, mark: Mark) -> None:
        """Record that, from `mark` on, the stream on which the program computes does something else, or waits."""
        with self._lock:
            if self._computing is not None:
                start, asked = self._computing
                self._pending.append(_Pending(start, mark, asked, -1, _nothing, None))
                self._computing = None

    def computing_begins(self, mark: Mark, host: float) -> None:
        """Record that the stream, from `mark` on, does work that the program requests after `host`, in host time."""
        with self._lock:
            self._computing = mark, host

    def poll(self) -> int:
        """Check which pieces are over; return the number of those that are not."""
        with self._lock:
            over: list[_Pending] = []
            unfinished: list[_Pending] = []
            for piece in self._pending:
                (over if piece.end.query() else unfinished).append(piece)
            self._pending = unfinished
            for piece in over:
                if len(self._known) < self._most:
                    times = self._at(piece.start), self._at(piece.end)
                    self._known.append((piece.operation, piece.asked, *times))
        for piece in over:
            piece.reached()
        return len(unfinished)

    @property
    def pending(self) -> int:
        """Number of pieces that were not over at the last check."""
        return len(self._pending)

    def _at(self, mark: Mark) -> float:
        """Seconds on the GPU's clock from its first mark."""
        seconds = self._reference_at + self._reference.elapsed_time(mark) / 1e3
        if seconds - self._reference_at > _REFERENCE_SECONDS:
            self._reference, self._reference_at = mark, seconds
        return seconds

    def forget(self) -> None:
        """Drop finished pieces; those under way will not be recorded."""
        self.poll()
        with self._lock:
            self._known.clear()

    def anchor(self, mark: Mark, host: float) -> None:
        """Record that `mark`, a late one, was reached at `host` on the host's clock."""
        with self._lock:
            self._anchors[1:] = [(self._at(mark), host)]

    def spans(self) -> list[tuple[int, float, float]]:
        """Finished pieces: (row, start, end) on the host's clock, row -1 for computing.

        Nothing begins before it was requested: a GPU that waits for its host is not computing.
        """
        (first, host), (last, later) = self._anchors[0], self._anchors[-1]
        pace = (later - host) / (last - first) if last > first else 1.0
        finished = []
        with self._lock:
            for row, asked, start, end in self._known:
                began, ended = (host + (moment - first) * pace for moment in (start, end))
                began = min(max(began, asked), ended)
                if row >= 0 or ended - began >= MIN_SECONDS:
                    finished.append((row, began, ended))
        return finished


def _nothing() -> None:
    pass
