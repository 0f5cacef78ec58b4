"""The agenda: timed entries, of which the one with the least time comes next."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

Act = Callable[[float, Any], None]
"""What an entry does, as `act(time, subject)`."""

_LAST = 1 << 62


class Agenda:
    """A heap of entries `(time, order, act, subject)`; without an act, `subject` is the rank that runs on."""

    __slots__ = ("entries", "order")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, Act | None, Any]] = []
        self.order = 0
        """Number of the latest entry or request: it breaks ties, so equal times are served in order of arrival."""

    def at(self, time: float, act: Act | None, subject: Any, last: bool = False) -> None:
        """Put `act(time, subject)` on the agenda, or the turn of rank `subject`.

        last: after everything else at the same time.
        """
        self.order += 1
        heappush(self.entries, (time, self.order + (_LAST if last else 0), act, subject))

    def is_due_before(self, time: float) -> bool:
        """Whether any entry comes before that time."""
        return bool(self.entries) and self.entries[0][0] < time

    def has_turns_only(self) -> bool:
        """Whether nothing is due but ranks that run on."""
        return all(act is None for _, _, act, _ in self.entries)
