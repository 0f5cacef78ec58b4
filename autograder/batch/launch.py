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
import time
import traceback
from contextlib import suppress
from typing import Protocol

from autograder.sandbox.forkserver import sandbox_forkserver, shared
from labkit.transport import datagrams


def begin() -> None:
    """Start the sandboxes' forkserver of all workers, which imports torch while this process does.

    If it cannot be started, the worker that needs it reports why.
    """
    with suppress(OSError):
        sandbox_forkserver().start()
    # otherwise Python finalizes all of torch and nbgrader, which takes up to two seconds after Ctrl-C
    atexit.register(gc.freeze)


class WorkerForkServer:
    """A process that forks workers; see `forkserver.py`. `control` is the socket to it."""

    def __init__(self, forked: bool = False) -> None:
        """forked: whether to fork from this process, which must have the workers' imports and no essential threads."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self.control, theirs = datagrams.pair()
        with theirs:
            self._process = self._fork(theirs) if forked else self._start(theirs)

    def _start(self, theirs: socket.socket) -> _Process:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "autograder.batch.forkserver", str(os.getpid()), str(theirs.fileno())],
            # the same module search path as this process
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is handled by this process
        )

    def _fork(self, theirs: socket.socket) -> _Process:
        from autograder.batch import forkserver  # with all that workers need

        parent = os.getpid()
        with shared():
            pid = os.fork()
        if pid:
            return _ForkedProcess(pid)
        try:
            os.setpgid(0, 0)
            self.control.close()
            null = os.open(os.devnull, os.O_RDONLY)
            for ours, standard in ((null, 0), (self._said.fileno(), 1), (self._said.fileno(), 2)):
                os.dup2(ours, standard)
            forkserver.main(parent, theirs.detach())
        except BaseException:  # nothing may propagate into the code of which this process is a copy
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)

    def end(self) -> None:
        """End it and its workers; idle workers close their sandboxes first. Idempotent."""
        self.control.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Return the end of its and its workers' output."""
        handle = self._said.fileno()
        # pread, not seek: they write through the same open file
        return os.pread(handle, 2000, max(0, os.fstat(handle).st_size - 2000)).decode(errors="replace").strip()


class _Process(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class _ForkedProcess:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        limit = None if timeout is None else time.monotonic() + timeout
        while self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif limit is not None and time.monotonic() >= limit:
                raise subprocess.TimeoutExpired("forkserver", timeout or 0.0)
            else:
                time.sleep(0.005)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
