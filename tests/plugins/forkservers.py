"""Forkservers for tests that move the clock of their limits, or of those of the runs that they serve."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from clocks import ManualClock

from labkit.clusters.forkserver import starting
from labkit.clusters.forkserver.client import ForkServer
from labkit.forking.held import Process


def environment() -> dict[str, str]:
    """Environment variables for a process that is to read one of these clocks."""
    path = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@contextmanager
def forkserver_that_reads_clocks(**options: Any) -> Iterator[ForkServer]:
    """A forkserver whose `supervisor_clock` may be one of these clocks, also after it was started again."""

    def launch(control: socket.socket, errors: IO[bytes]) -> Process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
            return starting.launch(control, errors)

    made = ForkServer(launch=launch, **options)
    made.start()
    try:
        yield made
    finally:
        made.close()


_SERVE = """
import pickle, socket, sys
from labkit.clusters.forkserver import server
idle_seconds, clock = pickle.loads(bytes.fromhex(sys.argv[2]))
work = server.idle_work(import_early=True) if idle_seconds is None else ()
server.serve(socket.socket(fileno=int(sys.argv[1])), work, idle_seconds=idle_seconds, clock=clock)
"""


def launched_with(
    clock: ManualClock, idle_seconds: float | None = None
) -> Callable[[socket.socket, IO[bytes]], subprocess.Popen[bytes]]:
    """For `ForkServer(launch=...)`: the forkserver itself waits by this clock. idle_seconds: see `server.serve`;
    with it, there is no work meanwhile.
    """

    def launch(control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        arguments = [str(control.fileno()), pickle.dumps((idle_seconds, clock)).hex()]
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=[control.fileno()],
            start_new_session=True,
        )

    return launch
