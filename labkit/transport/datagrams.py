"""JSON messages with file descriptors between two processes of this machine, over a pair of SOCK_SEQPACKET sockets.

The kernel keeps the boundaries of these messages, and knows their senders. Processes are started and report their state
with them; data travels in frames.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

MAX_BYTES = 64 << 10
_CREDENTIALS = struct.Struct("3i")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode(message: Mapping[str, Any]) -> bytes:
    """One message. Raises `ValueError` if it is larger than the maximum."""
    data = json.dumps(message).encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"a message of {len(data)} bytes, {MAX_BYTES} are allowed")
    return data


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message with descriptors, of which the receiver gets copies. Raises `OSError` if the receiver is gone."""
    socket.send_fds(connection, [encode(message)], descriptors)


def receive(connection: socket.socket, max_descriptors: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """Wait for a message: its content, None if the peer is gone, and its descriptors."""
    data, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, max_descriptors)
    return json.loads(data) if data else None, descriptors


def ask_for_senders(connection: socket.socket) -> None:
    """Make the kernel add its sender to each message that arrives here from now on."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive_with_sender(connection: socket.socket) -> tuple[dict[str, Any] | None, int]:
    """Wait for a message: its content, None if the peer is gone, and its sender's PID in this process's namespace.

    Requires `ask_for_senders` before the message is sent.
    """
    data, ancillary, _, _ = connection.recvmsg(MAX_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not data:
        return None, 0
    pids = [_CREDENTIALS.unpack(part)[0] for _, kind, part in ancillary if kind == socket.SCM_CREDENTIALS]
    return json.loads(data), pids[0]
