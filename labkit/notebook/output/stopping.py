"""Interrupting the running cell from another thread, as the toolbar's button does."""

from __future__ import annotations

import signal
import threading

PRESSED = "Stopped with the Stop button."
"""Note on a `KeyboardInterrupt` that came from the Stop button."""


class Stop:
    """Raises `KeyboardInterrupt` once in the main thread when pressed, until closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self.pressed = False

    def press(self) -> None:
        """Interrupt, unless closed or already pressed."""
        with self._lock:
            if self._open and not self.pressed:
                self.pressed = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def close(self) -> None:
        """From now on, do not interrupt."""
        with self._lock:
            self._open = False
