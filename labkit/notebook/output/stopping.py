"""Interrupting the running cell from another thread, as the toolbar's button does."""

from __future__ import annotations

import signal
import threading

PRESSED = "It was the Stop button."
"""A note on the `KeyboardInterrupt` of which that is true."""


class Stop:
    """May be pressed while something runs in the main thread; then that gets a `KeyboardInterrupt`, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self.pressed = False

    def press(self) -> None:
        """Interrupt, unless that is over or was done."""
        with self._lock:
            if self._open and not self.pressed:
                self.pressed = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def close(self) -> None:
        """It is over: from now on nothing is interrupted."""
        with self._lock:
            self._open = False
