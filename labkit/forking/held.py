"""A forkserver that this process has started, and starts again when it has ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

from labkit.forking.client import ForkedProcess, NoForkServer
from labkit.forking.request import Request
from labkit.linux.processes import descendants
from labkit.transport import datagrams

_LAST_BYTES = 2000
"""Of its output, how much an error quotes."""


class Process(Protocol):
    """A started process, with the interface of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


Launch = Callable[[socket.socket, IO[bytes]], Process]
"""Starts a process that runs `server.Server` on this socket, and prints into this file."""


@dataclass(frozen=True)
class Begun:
    """A process on its way to being a forkserver."""

    process: Process
    control: socket.socket
    """The peer of the server's door."""
    errors: IO[bytes]
    """Its output."""


def begin(launch: Launch) -> Begun:
    """Start one, without waiting."""
    ours, theirs = datagrams.pair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
    with theirs:
        return Begun(launch(theirs, errors), ours, errors)


class HeldForkServer:
    """A forkserver of this process. Thread-safe.

    patience: seconds that it has to end by itself when it is no longer needed, before it is killed with everything
        below it. None: it is killed at once, and alone; the kernel notifies its processes.
    """

    def __init__(self, launch: Launch, patience: float | None = None) -> None:
        self._launch = launch
        self._patience = patience
        self._lock = threading.Lock()
        self._begun: Begun | None = None
        self._shared: socket.socket | None = None
        """Control socket of the server of the process from which this one was forked, by agreement."""
        self._expected: Request | None = None
        self.starts = 0
        """Number of processes that have been started."""

    @property
    def process(self) -> Process | None:
        """The process, unless it was never started."""
        return None if self._begun is None else self._begun.process

    def start(self) -> None:
        """Start it unless it is running, without waiting: it imports in the background."""
        with self._lock:
            self._start()

    def take_over(self, begun: Begun) -> None:
        """Use a process that has been started ahead."""
        with self._lock:
            self._begun = begun
            self.starts += 1
            self._announce()

    def expect(self, asked: Request) -> None:
        """Have what serves such requests forked ahead whenever the server is idle."""
        with self._lock:
            if asked != self._expected:
                self._expected = asked
                self._announce()

    @property
    def expected(self) -> Request | None:
        """A request for which processes are forked ahead."""
        return self._expected

    def ask(self, asked: Request, own: Sequence[int] = ()) -> socket.socket:
        """Request a process; return the connection on which the server tells its PID and its end.

        own: the process's descriptors. Raises `NoForkServer` if the server has ended meanwhile.
        """
        ours, theirs = datagrams.pair()
        try:
            with self._lock, theirs:
                self._start()
                control = self._control
                assert control is not None
                datagrams.send(control, asked.to_message(), [theirs.fileno(), *own])
        except OSError as problem:
            ours.close()
            raise NoForkServer(f"the forkserver has ended: {problem}") from problem
        return ours

    def fork(self, asked: Request, own: Sequence[int] = ()) -> ForkedProcess:
        """Return a process that it has forked. Raises `NoForkServer`."""
        return ForkedProcess(self.ask(asked, own))

    def close(self) -> None:
        """End it. It starts again when it is needed."""
        with self._lock:
            self._forget()

    def wait(self, seconds: float) -> None:
        """Wait until its process has ended, for at most so long."""
        if (process := self.process) is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)

    def last_words(self) -> str:
        """Return the end of its output and of its processes'."""
        with self._lock:
            if self._begun is None:
                return "it left no message"
            file = self._begun.errors.fileno()
            # pread, not seek: they write through the same open file
            data = os.pread(file, _LAST_BYTES, max(0, os.fstat(file).st_size - _LAST_BYTES))
            return data.decode(errors="replace").strip() or "it left no message"

    def forget_after_fork(self) -> None:
        """Detach in a forked child: it belongs to the parent, and must notice the parent's end."""
        if self._control is not None:
            self._control.close()
        self._lock = threading.Lock()
        self._begun = self._shared = None

    def share_after_fork(self) -> None:
        """Use the parent's in a child that does the parent's work. It ends when both have ended."""
        self._lock = threading.Lock()
        self._begun, self._shared = None, self._control

    @property
    def is_shared(self) -> bool:
        """Whether it belongs to the process from which this one was forked."""
        return self._shared is not None

    @property
    def _control(self) -> socket.socket | None:
        return self._shared if self._begun is None else self._begun.control

    def _start(self) -> None:
        if self._shared is None and not self._is_running():
            self._forget()
            self._begun = self._begin()
            self.starts += 1
            self._announce()

    def _begin(self) -> Begun:
        return begin(self._launch)

    def _announce(self) -> None:
        if self._expected is not None and self._begun is not None:
            with suppress(OSError):  # it has ended; the next one is told at its start
                datagrams.send(self._begun.control, self._expected.to_message())

    def _is_running(self) -> bool:
        if self._begun is None or self._begun.process.poll() is not None:
            return False
        # it never sends anything: readable means that it listens no longer, though its process may not have ended yet
        return not select.select([self._begun.control], [], [], 0)[0]

    def _forget(self) -> None:
        begun, self._begun, self._shared = self._begun, None, None
        if begun is None:
            return
        begun.control.close()
        try:
            if self._patience is None:
                begun.process.kill()
            begun.process.wait(self._patience)
        except subprocess.TimeoutExpired:  # still importing, for example after Ctrl-C
            for pid in (begun.process.pid, *descendants(begun.process.pid)):  # none of them ends with the first
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            begun.process.wait()
        begun.errors.close()
