"""For programs on real ranks: say that a rank is where it will wait, so that a test knows when all have come there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.clusters import State
from labkit.clusters.forkserver.progress import OTHER
from labkit.clusters.forkserver.rank_process import slot

WAITS = "waits"
_announced = False


def announce_waits() -> None:
    """Print `WAITS` before each wait in an operation from now on, when this rank's supervisor knows of the wait.

    A rank that waits elsewhere prints it itself, in the line in which it does.
    """
    global _announced
    if _announced:
        return
    _announced, own = True, slot()
    begin, wait = own.begin, own.wait

    def begins(kind: Any, *operation: Any, **more: Any) -> int:
        entry = begin(kind, *operation, **more)
        if kind == OTHER:
            print(WAITS, flush=True)
        return entry

    def waits(entry: int) -> None:
        wait(entry)
        print(WAITS, flush=True)

    own.begin, own.wait = begins, waits  # type: ignore[method-assign]


class When:
    """Calls `do`, once, when so many ranks have printed `WAITS` and so many have ended or, live ones, answered."""

    def __init__(self, do: Callable[[], object], waiting: int, ended: int = 0) -> None:
        self._do = do
        self._waiting, self._ended = waiting, ended
        self._printed: dict[int, str] = {}
        self._seen = 0
        self._done = False

    def on_output(self, rank: int, stream: str, text: str) -> None:
        self._printed[rank] = self._printed.get(rank, "") + text
        self._look()

    def on_state(self, state: State) -> None:
        self._seen = state.ended
        self._look()

    def _look(self) -> None:
        waiting = sum(WAITS in printed for printed in self._printed.values())
        if not self._done and waiting >= self._waiting and self._seen >= self._ended:
            self._done = True
            self._do()
