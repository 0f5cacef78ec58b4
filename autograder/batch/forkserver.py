"""`python -m autograder.batch.forkserver`: the workers' forkserver, a process with all imports done.

Importing torch and nbgrader takes three seconds; done once, another worker, or a replacement for a dead one, takes a
hundredth of that. `labkit autograde` forks it from itself, which adds no import time.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

from autograder.batch import worker as worker  # with all that workers need
from autograder.sandbox.forkserver import shared
from labkit.forking.server import Server
from labkit.linux.prctl import die_with_parent

PATIENCE = 10.0
"""Seconds granted to idle workers to close their sandboxes and end."""


def main(parent: int, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
    """Fork workers on request until the parent closes the control socket or ends. clock: that of `PATIENCE`."""
    die_with_parent(parent)
    # one import of torch for the sandboxes of all workers
    with shared():
        program = Server(socket.socket(fileno=descriptor), patience=PATIENCE, clock=clock).serve()
    if program is not None:
        program()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
