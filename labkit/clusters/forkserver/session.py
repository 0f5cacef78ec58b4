"""A run under way, on its client's side: a connection to the supervisor of its processes."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

from labkit.clusters.forkserver.interrupts import held, let_through
from labkit.linux.clock import Clock, wait_seconds
from labkit.transport import frames

_RECEIVE_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
"""Time after which a wait sees an interrupt that came just before it began."""
_ANSWER_SECONDS = 0.5
"""Time for a supervisor that may not exist yet to answer a `withdraw`."""


class Session:
    """Created by `ForkServer.open`. Frames go both ways: collector.py defines incoming ones, supervisor.py outgoing.

    Always close it: no process of the run is left then.
    """

    def __init__(
        self, connection: socket.socket, first: bytes, ended: Callable[[bool], None], patience: float, clock: Clock
    ) -> None:
        """first: data that has already arrived. ended: called by `close` with whether the supervisor has ended, for
        which it has `patience` seconds of `clock`.
        """
        self.connection = connection
        self._first = first
        self._ended = ended
        self._patience = patience
        self._clock = clock
        self._heard = False

    def receive(self, seconds: float | None = None) -> bytes | None:
        """Newly arrived data; empty if the supervisor has ended, None if none came within `seconds` of the clock."""
        if self._first:
            first, self._first = self._first, b""
            return first
        limit = None if seconds is None else self._clock() + seconds
        while True:
            left = wait_seconds(self._clock, limit)
            with let_through():
                wait = _LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left)
                ready = select.select([self.connection], [], [], wait)[0]
            if ready:
                break
            if limit is not None and self._clock() >= limit:
                return None
        try:
            return self.connection.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            return b""

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame. Raises `OSError` if the supervisor has ended."""
        self.connection.sendall(frames.encode(header, payload))

    def close(self) -> None:
        """Make the supervisor end every process of the run, and wait for it. Closing twice is harmless."""
        with held():
            try:
                self._ended(self._stop())
            finally:
                self.connection.close()

    def withdraw(self) -> None:
        """Close a session whose supervisor has sent nothing yet: the forkserver may still be importing torch.

        A supervisor that begins later finds the run withdrawn and starts no process.
        """
        with held():
            try:
                self._ended(self._stop(_ANSWER_SECONDS) or not self._heard)
            finally:
                self.connection.close()

    def _stop(self, silence: float | None = None) -> bool:
        """Wait for the supervisor to end, for at most `silence` seconds if it sends nothing. Returns whether it did."""
        began = self._clock()
        limit = began + (self._patience if silence is None else silence)
        try:
            self.connection.shutdown(socket.SHUT_WR)
            while left := wait_seconds(self._clock, limit):
                if select.select([self.connection], [], [], left)[0]:
                    if not self.connection.recv(_RECEIVE_BYTES):
                        return True
                    self._heard, limit = True, began + self._patience
        except (OSError, ValueError):  # it is gone, or this is closed already
            return True
        return False
