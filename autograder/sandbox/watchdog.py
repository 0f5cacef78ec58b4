"""A watchdog that checks all sandboxes of this process several times a second and ends those over their limits."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

_PERIOD_SECONDS = 0.1
_SHARE = 0.05
"""Maximum share of one core spent on checking."""


class WatchedSandbox(Protocol):
    def look(self) -> None: ...


class Watchdog:
    """A thread that runs while anything is watched."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[WatchedSandbox] = set()
        self._thread: threading.Thread | None = None

    def watch(self, one: WatchedSandbox) -> None:
        with self._changed:
            self._watched.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox watchdog", daemon=True)
                self._thread.start()

    def leave(self, one: WatchedSandbox) -> None:
        with self._changed:
            self._watched.discard(one)
            self._changed.notify_all()

    def forget_after_fork(self) -> None:
        """Reset in a forked child, which has neither the thread nor anything watched."""
        self._changed = threading.Condition()
        self._watched = set()
        self._thread = None

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            for sandbox in list(self._watched):
                sandbox.look()
            took = time.monotonic() - began
            with self._changed:
                self._changed.wait_for(lambda: not self._watched, timeout=max(_PERIOD_SECONDS, took / _SHARE))
                if not self._watched:
                    self._thread = None
                    return


watchdog = Watchdog()
os.register_at_fork(after_in_child=watchdog.forget_after_fork)
