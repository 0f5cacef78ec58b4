"""Output of a process's ranks on its way to the client: at once if there is little, in batches if there is much."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic, sleep  # as they are before virtual clocks replace them

from labkit.linux.clock import Clock

_PAUSE_SECONDS = 0.01
"""Minimum time between two batches: text that arrives sooner waits about this long, for more to come."""
_MAX_CHARACTERS = 1 << 15


class OutputBatches:
    """Passes texts on to `report(rank, stream, text)`, in their order; adjacent ones of a rank's stream are joined."""

    def __init__(self, report: Callable[[int, str, str], None], clock: Clock = monotonic) -> None:
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: list[tuple[int, str, list[str]]] = []
        self._characters = 0
        self._passed_on = 0.0
        """Time at which text was last passed on."""
        self._timer: threading.Thread | None = None
        self._forked = False
        os.register_at_fork(after_in_child=self._has_forked)

    def add(self, rank: int, stream: str, text: str) -> None:
        """Pass the text on, now or soon."""
        if self._forked:  # nobody in this process would pass it on later
            self._report(rank, stream, text)
            return
        with self._lock:
            if self._kept and self._kept[-1][:2] == (rank, stream):
                self._kept[-1][2].append(text)
            else:
                self._kept.append((rank, stream, [text]))
            self._characters += len(text)
            if self._characters > _MAX_CHARACTERS or self._clock() - self._passed_on > _PAUSE_SECONDS:
                self._pass_on()
            elif self._timer is None:
                self._timer = threading.Thread(target=self._pass_on_in_time, name="output", daemon=True)
                _start(self._timer)

    def flush(self) -> None:
        """Pass on everything."""
        with self._lock:
            self._pass_on()

    def _has_forked(self) -> None:
        # what is kept is the parent's to pass on, and its timer may have held the lock at the fork
        self._forked, self._kept, self._lock = True, [], threading.Lock()

    def _pass_on(self) -> None:
        kept, self._kept, self._characters = self._kept, [], 0
        for rank, stream, texts in kept:
            self._report(rank, stream, "".join(texts))
        self._passed_on = self._clock()

    def _pass_on_in_time(self) -> None:
        while True:
            sleep(_PAUSE_SECONDS)
            with self._lock:
                if not self._kept:
                    self._timer = None
                    return
                self._pass_on()


_start = threading.Thread.start
"""As it is before threads count as those of the rank that starts them."""
