"""Processes that use all of the machine's processor time, for measurements on a busy machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# each ends by itself once its parent is gone, however the parent ended
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000): pass"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that compute all the time."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            # a session of their own keeps Ctrl-C from them: they are killed below
            command = [sys.executable, "-S", "-c", _BUSY, str(os.getpid())]
            started.append(subprocess.Popen(command, start_new_session=True))
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
