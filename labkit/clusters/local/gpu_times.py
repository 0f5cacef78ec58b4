"""When a GPU came to what a rank had put on its streams, on the host's clock: only arithmetic over marks.

A mark is a CUDA event. Marks are asked when they have been reached, so that nothing waits for the GPU while the program
runs. Two moments are known on both clocks, one early and one late; in between the GPU's clock is taken as even.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MIN_SECONDS = 5e-6
"""Computing that is shorter is the pause between two marks."""
_REFERENCE_SECONDS = 5.0
"""CUDA tells the time between two events with 24 bits: over longer times no microseconds are left."""


class Mark(Protocol):
    """A place on a stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Has the GPU come to it?"""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from here to another mark; both must have been reached."""


class _Pending(NamedTuple):
    start: Mark
    end: Mark
    asked: float
    """Seconds on the host's clock: it cannot have begun sooner."""
    operation: int
    """Row of the operation; -1 for computing."""
    reached: Callable[[], None]
    kept: Any
    """What must not be freed before."""


class GpuTimes:
    """What one GPU does, between marks. Safe to use from any thread."""

    def __init__(self, mark: Mark, host: float, most: int) -> None:
        """`mark` was reached when the host's clock said `host`, in seconds. `most` operations and spans are kept."""
        self._most = most
        self._reference, self._reference_at = mark, 0.0
        self._anchors = [(0.0, host)]
        self._pending: list[_Pending] = []
        self._known: list[tuple[int, float, float, float]] = []
        """Of what is over: row, when it was asked for on the host's clock, start and end on the GPU's, in seconds."""
        self._computing: tuple[Mark, float] | None = (mark, host)
        self._lock = threading.Lock()

    def operation(self, row: int, start: Mark, end: Mark, asked: float, reached: Callable[[], None], kept: Any) -> None:
        """An operation lasts from `start` to `end`; `reached` is called when it is known to be over."""
        with self._lock:
            self._pending.append(_Pending(start, end, asked, row, reached, kept))

    def computing_ends(self, mark: Mark) -> None:
        """The stream on which the program computes has something else to do, or waits."""
        with self._lock:
            if self._computing is not None:
                start, asked = self._computing
                self._pending.append(_Pending(start, mark, asked, -1, _nothing, None))
                self._computing = None

    def computing_begins(self, mark: Mark, host: float) -> None:
        """From `mark` on the stream does what the program asks for after `host`, on its clock."""
        with self._lock:
            self._computing = mark, host

    def poll(self) -> int:
        """Look what is over; return how many pieces are not."""
        with self._lock:
            over: list[_Pending] = []
            left: list[_Pending] = []
            for piece in self._pending:
                (over if piece.end.query() else left).append(piece)
            self._pending = left
            for piece in over:
                if len(self._known) < self._most:
                    times = self._at(piece.start), self._at(piece.end)
                    self._known.append((piece.operation, piece.asked, *times))
        for piece in over:
            piece.reached()
        return len(left)

    @property
    def pending(self) -> int:
        """How many pieces were not over when it was last looked."""
        return len(self._pending)

    def _at(self, mark: Mark) -> float:
        """On the GPU's clock, in seconds from its first mark."""
        seconds = self._reference_at + self._reference.elapsed_time(mark) / 1e3
        if seconds - self._reference_at > _REFERENCE_SECONDS:
            self._reference, self._reference_at = mark, seconds
        return seconds

    def forget(self) -> None:
        """Of what is over nothing is kept; what is under way counts for nobody."""
        self.poll()
        with self._lock:
            self._known.clear()

    def anchor(self, mark: Mark, host: float) -> None:
        """`mark`, which comes late, was reached when the host's clock said `host`."""
        with self._lock:
            self._anchors[1:] = [(self._at(mark), host)]

    def spans(self) -> list[tuple[int, float, float]]:
        """What is over: (row, start, end) on the host's clock, row -1 for computing.

        Nothing begins before it was asked for: a GPU that waits for its host is not computing.
        """
        (first, host), (last, later) = self._anchors[0], self._anchors[-1]
        pace = (later - host) / (last - first) if last > first else 1.0
        found = []
        with self._lock:
            for row, asked, start, end in self._known:
                began, ended = (host + (moment - first) * pace for moment in (start, end))
                began = min(max(began, asked), ended)
                if row >= 0 or ended - began >= MIN_SECONDS:
                    found.append((row, began, ended))
        return found


def _nothing() -> None:
    pass
