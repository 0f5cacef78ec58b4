"""What goes between the scheduler and a rank that is a process: `wire` values over a socket, one after the other."""

from __future__ import annotations

import socket
import struct
from typing import Any

from labkit.clusters import wire

MAX_MESSAGE_BYTES = 256 << 20


class ProtocolError(ValueError):
    """The other end sent something that does not belong here."""


def send(connection: socket.socket, value: Any) -> None:
    data = wire.dumps(value)
    connection.sendall(struct.pack("<Q", len(data)) + data)


class Allowance:
    """So many bytes may come in, on all connections that share it."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def take(self, nbytes: int) -> None:
        """Raises `ProtocolError` when there are not so many left."""
        if nbytes > self._left:
            raise ProtocolError(f"a message of {nbytes} bytes, {self._left} are left of what a run may send")
        self._left -= nbytes


def receive(connection: socket.socket, allowance: Allowance | None = None) -> Any:
    """The next value, or None at the end of the stream. Raises `ProtocolError`, or `wire.WireError`."""
    header = _exactly(connection, 8)
    if header is None:
        return None
    (length,) = struct.unpack("<Q", header)
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {length} bytes")
    if allowance is not None:
        allowance.take(length)
    data = _exactly(connection, length)
    return None if data is None else wire.loads(memoryview(data))


def _exactly(connection: socket.socket, length: int) -> bytearray | None:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if count == 0:
            return None
        filled += count
    return data
