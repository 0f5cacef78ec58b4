"""Processes that take whatever the machine has, for what is to be seen on a busy one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# each ends by itself when nobody waits for it, however its parent ends
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(1_000_000): pass"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that compute all the time."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            # no Ctrl-C for them: they are ended here
            command = [sys.executable, "-S", "-c", _BUSY, str(os.getpid())]
            started.append(subprocess.Popen(command, start_new_session=True))
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
