"""SIGINT on a live rank: a `KeyboardInterrupt` in the running cell, and no effect between cells.

Code below Python does not notice it. Operations that wait in a process group are broken off by the group repair.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from labkit.clusters.program import is_learners

_PATIENCE_SECONDS = 0.15
"""Time that Python code may take to notice the interrupt, before code below it is assumed to hang."""


class Interrupts:
    """Created in the rank's main thread. `cut` breaks off operations in process groups; another thread calls it."""

    def __init__(self, cut: Callable[[], bool]) -> None:
        self._cut = cut
        self._main = threading.get_ident()
        self._in_python = False
        self._idle = threading.Event()
        self._idle.set()
        self.came = False
        """Whether an interrupt came during the last cell."""
        self._raised = False
        woken, self._wake_up = os.pipe()
        os.set_blocking(self._wake_up, False)
        threading.Thread(target=self._watch, args=(woken,), name="labkit interrupts", daemon=True).start()

    @contextmanager
    def allowed(self, anywhere: bool = False) -> Iterator[None]:
        """Within the block, SIGINT raises `KeyboardInterrupt` in the learner's code, or `anywhere`."""
        self.came = self._raised = False
        self._anywhere = anywhere
        # each time, since the learner's code may have set its own handler
        signal.signal(signal.SIGINT, self._handle)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if self._idle.is_set():
            return
        self.came = True
        # not while an error is leaving the cell: the rank itself must live on
        if self._anywhere or _is_in_learners_code(frame):
            self._raised = True
            raise KeyboardInterrupt

    def _watch(self, woken: int) -> None:
        while signals := os.read(woken, 64):
            if signal.SIGINT not in signals:
                continue
            while not self._idle.wait(_PATIENCE_SECONDS):
                self._cut()
                if not self._raised:  # it came too early or too late for the line that it should have hit
                    signal.pthread_kill(self._main, signal.SIGINT)


def _is_in_learners_code(frame: FrameType | None) -> bool:
    while frame is not None:
        if is_learners(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False
