"""Requests a process from a forkserver, and watches it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence

from labkit.forking.request import Request, address_of
from labkit.transport import datagrams

_ANSWER_SECONDS = 120.0
"""Time for a forkserver that may still be importing."""


class NoForkServer(OSError):
    """No forkserver listens, or it has refused; the message says which."""


def fork(asked: Request, own: Sequence[int], address: str) -> ForkedProcess:
    """Return a process that the forkserver at `address` has forked.

    own: the process's descriptors; with `asked.prints`, the first is where it prints. Raises `NoForkServer`; ValueError
    if the request is too large.
    """
    if not address:
        raise NoForkServer("no forkserver is running here")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address_of(address))
        datagrams.send(connection, asked.to_message(), own)
    except OSError as problem:
        connection.close()
        raise NoForkServer(f"the forkserver does not answer: {problem}") from problem
    except BaseException:
        connection.close()
        raise
    return ForkedProcess(connection)


class ForkedProcess:
    """A process that a forkserver has forked, with the interface of `subprocess.Popen`. Thread-safe."""

    stdin = stdout = stderr = None

    def __init__(self, connection: socket.socket) -> None:
        """connection: where the forkserver tells the PID and the exit status. Raises `NoForkServer`."""
        self._connection = connection
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.lost = False
        """Whether the forkserver has ended before it: nobody knows how it ended, and in a sandbox it ended with it."""
        connection.settimeout(_ANSWER_SECONDS)
        try:
            answer, _ = datagrams.receive(connection)
        except OSError as problem:
            raise NoForkServer(f"the forkserver does not answer: {problem}") from problem
        if answer is None or "pid" not in answer:
            raise NoForkServer(f"the forkserver has refused: {(answer or {}).get('error', 'it has ended')}")
        self.pid: int = answer["pid"]

    def __del__(self) -> None:
        self._connection.close()

    def fileno(self) -> int:
        """Return a descriptor that can be read once it has ended."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal's number; None if the process has not ended."""
        with self._lock:
            if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
                answer = None
                with contextlib.suppress(OSError):
                    answer, _ = datagrams.receive(self._connection)
                self.lost = answer is None
                self.returncode = -signal.SIGKILL if answer is None else answer["status"]
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises `subprocess.TimeoutExpired` if it has not ended after `timeout` seconds."""
        if self.poll() is None:
            select.select([self._connection], [], [], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)
