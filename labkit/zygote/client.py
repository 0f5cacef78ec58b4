"""Requests a process from a zygote, and watches it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence

from labkit.transport import datagrams
from labkit.zygote import ADDRESS
from labkit.zygote.request import Request, address_of

_ANSWER_SECONDS = 120.0
"""Time for a zygote that may still be importing."""


class NoZygote(OSError):
    """No zygote listens, or it has refused."""


def fork(asked: Request, descriptors: Sequence[int], address: str | None = None) -> ForkedProcess:
    """Return a process that the zygote has forked.

    descriptors: standard input, output and error output, then those that the program gets. address: as `address_of`
    takes it; by default that of this machine's zygote. Raises `NoZygote`; `ValueError` if the request is too large.
    """
    address = os.environ.get(ADDRESS, "") if address is None else address
    if not address:
        raise NoZygote("no zygote is running here")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(address_of(address))
            datagrams.send(connection, asked.fields(), descriptors)
            answer, _ = datagrams.receive(connection)
        except OSError as problem:
            raise NoZygote(f"the zygote does not answer: {problem}") from problem
        if answer is None or "pid" not in answer:
            raise NoZygote(f"the zygote has refused: {(answer or {}).get('error', 'it has ended')}")
    except BaseException:
        connection.close()
        raise
    return ForkedProcess(answer["pid"], connection)


class ForkedProcess:
    """A process that a zygote has forked, with the interface of `subprocess.Popen`. Thread-safe."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, connection: socket.socket) -> None:
        """connection: where the zygote tells the exit status."""
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._connection.close()

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal's number; None if the process has not ended."""
        with self._lock:
            if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
                answer = None
                with contextlib.suppress(OSError):
                    answer, _ = datagrams.receive(self._connection)
                # without its zygote nobody knows how it ends; in a sandbox it ends with it
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
