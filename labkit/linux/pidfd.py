"""A process that cannot be mistaken for a later one with its PID. Linux 5.4+."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess


class ProcessHandle:
    """A process, with the interface of `subprocess.Popen`. This process need not be its parent."""

    def __init__(self, pid: int) -> None:
        """Raises `OSError` if it has ended, and was no child of this process."""
        self.pid = pid
        """PID, which another process may get once this one has ended."""
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it had ended
            os.close(self._descriptor)

    def poll(self) -> int | None:
        """Return None while it is running; then its exit status or minus the signal's number; 0 if it was no child."""
        if self.returncode is None and self._has_ended(0.0):
            self.returncode = self._status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return the same. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.returncode is None and not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        """End it, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _has_ended(self, seconds: float | None) -> bool:
        """Wait for its end for at most `seconds`, without a limit if None."""
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else seconds * 1000))

    def _status(self) -> int:
        try:
            ended = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
        except ChildProcessError:  # another process's child, or reaped already
            return 0
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
