"""The nursery as the main process holds it. Imports nothing heavy, so that it can be the first thing that is done."""

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

from autograder.sandbox.template import shared, template


def begin() -> None:
    """Start what the sandboxes of all workers are forked from: it imports torch while this process does.

    Where it cannot be started, the worker that needs it says so.
    """
    with suppress(OSError):
        template().start()
    # else Python goes through all of torch and nbgrader once more, which takes up to two seconds after Ctrl-C
    atexit.register(gc.freeze)


class Nursery:
    """A process that forks workers; see `nursery.py`. `control` talks to it."""

    def __init__(self, forked: bool = False) -> None:
        """forked: from this process, which has imported what workers need, and has no threads that it cannot miss."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._fork(theirs) if forked else self._start(theirs)

    def _start(self, theirs: socket.socket) -> _Process:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "autograder.batch.nursery", str(os.getpid()), str(theirs.fileno())],
            # found as here, however this process finds its modules
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is for this process to act upon
        )

    def _fork(self, theirs: socket.socket) -> _Process:
        from autograder.batch import nursery  # with all that workers need

        parent = os.getpid()
        with shared():
            pid = os.fork()
        if pid:
            return _Forked(pid)
        try:
            os.setpgid(0, 0)
            self.control.close()
            null = os.open(os.devnull, os.O_RDONLY)
            for ours, standard in ((null, 0), (self._said.fileno(), 1), (self._said.fileno(), 2)):
                os.dup2(ours, standard)
            nursery.main(parent, theirs.detach())
        except BaseException:  # nothing may escape into the code of which this process is a copy
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)

    def end(self) -> None:
        """End it and its workers: those that are idle close their sandboxes first. Again is no error."""
        self.control.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The end of what it and its workers printed."""
        handle = self._said.fileno()
        # not by seeking: they write where this process reads
        return os.pread(handle, 2000, max(0, os.fstat(handle).st_size - 2000)).decode(errors="replace").strip()


class _Process(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class _Forked:
    """A process that was forked, as `subprocess.Popen` has one."""

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
                raise subprocess.TimeoutExpired("nursery", timeout or 0.0)
            else:
                time.sleep(0.005)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
