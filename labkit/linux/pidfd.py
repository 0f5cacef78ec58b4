"""A process that cannot be mistaken for a later one with its PID. Linux 5.3+."""

from __future__ import annotations

import contextlib
import os
import select
import signal


class ProcessHandle:
    """A process of which this one need not be the parent."""

    def __init__(self, pid: int) -> None:
        """Raises `OSError` if it has ended."""
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it had ended
            os.close(self._descriptor)

    def kill(self) -> None:
        """End it, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def has_ended(self, seconds: float | None = 0.0) -> bool:
        """Wait for its end for at most `seconds`, without a limit if None."""
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else seconds * 1000))
