"""One run under way, as its client sees it: a connection to the supervisor that keeps its processes."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit.clusters.warm import frames
from labkit.clusters.warm.interrupts import held, let_through

_RECEIVE_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
"""An interrupt that comes just before a wait begins is seen when the wait ends."""


class Session:
    """Made by `WarmProcess.open`. Frames go both ways; collector.py says what comes, supervisor.py what may be sent.

    To be closed, whatever happens: no process of the run is left then.
    """

    def __init__(self, connection: socket.socket, first: bytes, ended: Callable[[bool], None], patience: float) -> None:
        """first: what has already come in. ended: called by `close` with whether the supervisor has ended, for which
        there are `patience` seconds."""
        self.connection = connection
        self._first = first
        self._ended = ended
        self._patience = patience

    def receive(self, seconds: float | None = None) -> bytes | None:
        """What has come in since; empty when the supervisor has ended, None when nothing came within `seconds`."""
        if self._first:
            first, self._first = self._first, b""
            return first
        limit = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _LOOK_SECONDS if limit is None else min(_LOOK_SECONDS, max(0.0, limit - time.monotonic()))
            with let_through():
                ready = select.select([self.connection], [], [], left)[0]
            if ready:
                break
            if limit is not None and time.monotonic() >= limit:
                return None
        try:
            return self.connection.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            return b""

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame. Raises `OSError` when the supervisor has ended."""
        self.connection.sendall(frames.encode(header, payload))

    def close(self) -> None:
        """Have the supervisor end every process of the run, and wait until it has. Closing twice does no harm."""
        with held():
            try:
                self._ended(self._stop())
            finally:
                self.connection.close()

    def _stop(self) -> bool:
        try:
            self.connection.shutdown(socket.SHUT_WR)
            limit = time.monotonic() + self._patience
            while (left := limit - time.monotonic()) > 0:
                if select.select([self.connection], [], [], left)[0] and not self.connection.recv(_RECEIVE_BYTES):
                    return True
        except (OSError, ValueError):  # it is gone, or this is closed already
            return True
        return False
