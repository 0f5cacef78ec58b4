"""File descriptors passed to another process of this machine over a Unix stream socket; the receiver owns copies."""

from __future__ import annotations

import socket
from collections.abc import Sequence

_AT_ONCE = 64
"""The kernel passes no more than 253 with one message."""


def send(connection: socket.socket, descriptors: Sequence[int]) -> None:
    """Send any number of descriptors; each batch travels with one byte."""
    for start in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(connection, [b"d"], descriptors[start : start + _AT_ONCE])


def receive(connection: socket.socket, count: int) -> list[int]:
    """Wait for `count` descriptors of one `send`. Raises `EOFError` if the peer closes the connection before."""
    received: list[int] = []
    while len(received) < count:
        data, batch, _, _ = socket.recv_fds(connection, 1, _AT_ONCE)
        if not data:
            raise EOFError(f"the peer closed the connection after {len(received)} of {count} file descriptors")
        received += batch
    return received
