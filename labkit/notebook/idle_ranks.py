"""Ends live ranks that no cell has used for some time, if the site asks for it: others need their memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.hub import idle_minutes


class IdleTimer:
    """Calls `end` in a thread when nothing was in use for the site's minutes, and never while something is."""

    def __init__(self, end: Callable[[float], None]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Stop the clock meanwhile, and start it anew afterwards."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            try:
                yield
            finally:
                self._start(idle_minutes.allowed())

    def _start(self, minutes: float) -> None:
        self._timer = None
        if minutes:
            self._timer = threading.Timer(60 * minutes, lambda: self._expire(minutes))
            self._timer.daemon = True
            self._timer.start()

    def _expire(self, minutes: float) -> None:
        with self._lock:
            if self._timer is threading.current_thread():  # else there was a use in the meantime
                self._timer = None
                self._end(minutes)
