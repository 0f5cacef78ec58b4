"""The main process's side of the workers' forkserver. Light imports only, so that it can start first."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from autograder.sandbox.forkserver import sandbox_forkserver, shared
from labkit.forking.client import ForkedProcess
from labkit.forking.held import Begun, HeldForkServer
from labkit.forking.request import Request
from labkit.linux.pidfd import ProcessHandle
from labkit.transport import datagrams

_END_SECONDS = 20.0
"""Seconds that the forkserver and its workers have to end by themselves."""


def begin() -> None:
    """Start the sandboxes' forkserver of all workers, which imports torch while this process does.

    If it cannot be started, the worker that needs it reports why.
    """
    with suppress(OSError):
        sandbox_forkserver().server.start()
    # otherwise Python finalizes all of torch and nbgrader, which takes up to two seconds after Ctrl-C
    atexit.register(gc.freeze)


class WorkerForkServer(HeldForkServer):
    """The forkserver of workers; see `forkserver.py`. Started at once, and again, as a program, when it has died."""

    def __init__(self, forked: bool = False) -> None:
        """forked: whether to fork from this process, which must have the workers' imports and no essential threads."""
        super().__init__(_started, _END_SECONDS)
        self._forked = forked
        self.start()

    def hire(self, course: Mapping[str, Any], connection: socket.socket) -> ForkedProcess:
        """Return a new worker, which takes its work from `connection`. course: see `worker.main`.

        Raises `NoForkServer` if the forkserver ends before it has forked one.
        """
        from autograder.batch import worker  # imports torch

        # it uses this process's forkserver of sandboxes
        request = Request(worker.main, dict(course), signal=signal.SIGKILL, inherits=True)
        return self.fork(request, [connection.fileno()])

    def _begin(self) -> Begun:
        if not self._forked or self.starts:
            return super()._begin()
        ours, theirs = datagrams.pair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        with theirs:
            return Begun(_forked(ours, theirs, errors), ours, errors)


def _started(control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "autograder.batch.forkserver", str(os.getpid()), str(control.fileno())],
        # the same module search path as this process
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        pass_fds=[control.fileno()],
        process_group=0,  # Ctrl-C is handled by this process
    )


def _forked(ours: socket.socket, control: socket.socket, errors: IO[bytes]) -> ProcessHandle:
    """ours: the peer of `control`, which only this process keeps."""
    from autograder.batch import forkserver  # with all that workers need

    parent = os.getpid()
    with shared():
        pid = os.fork()
    if pid:
        return ProcessHandle(pid)
    try:
        os.setpgid(0, 0)
        ours.close()
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, standard in ((null, 0), (errors.fileno(), 1), (errors.fileno(), 2)):
            os.dup2(descriptor, standard)
        forkserver.main(parent, control.detach())
    except BaseException:  # nothing may propagate into the code of which this process is a copy
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)
