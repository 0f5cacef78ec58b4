"""Waiting for JupyterHub's start: for as long as it makes progress, however slow the machine is."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from labkit.command_line.commands import CommandError

_PAUSE_SECONDS = 0.3
_SHOWN_LINES = 15


class StartLog:
    """What JupyterHub writes to its log from now on; the file has the logs of earlier starts, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._earlier = self._size()

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def nbytes(self) -> int:
        """Number of bytes written so far."""
        return self._size() - self._earlier

    def end(self) -> str:
        """Return the last lines; a sentence if there are none."""
        with self.path.open("rb") as file:
            file.seek(self._earlier)
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_SHOWN_LINES:]) or f"it has written nothing to {self.path}"


def wait_until_up(
    hub: subprocess.Popen[bytes],
    answers: Callable[[], bool],
    log: StartLog,
    silent_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when `answers()`. Raises `CommandError` if the process has ended, or wrote nothing for `silent_seconds`.

    clock: in seconds, for that limit.
    """
    written, since = log.nbytes, clock()
    while True:
        if hub.poll() is not None:
            raise CommandError(f"JupyterHub does not start: it has ended with status {hub.returncode}\n{log.end()}")
        if answers():
            return
        if log.nbytes != written:
            written, since = log.nbytes, clock()
        elif clock() - since >= silent_seconds:
            raise CommandError(
                f"JupyterHub does not answer, and has written nothing to {log.path} for {silent_seconds:g} s. If this "
                f"machine is that slow, set start_seconds in [servers] of the settings.\n{log.end()}"
            )
        time.sleep(_PAUSE_SECONDS)
