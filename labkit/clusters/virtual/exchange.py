"""What goes between the scheduler and a rank that is a process: messages over a socket, one after the other.

A message is a JSON text and raw buffers, which stand for the bytes and tensors in it; sequences arrive as lists.
Reading one is safe on bytes from untrusted code.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any

import torch

from labkit.clusters import wire

MAX_MESSAGE_BYTES = 256 << 20
MAX_TEXT_BYTES = 1 << 20
"""Three bytes of it can stand for a list, which takes twenty times as much."""
ENDED = "the scheduler ended this rank"
_PREFIX = struct.Struct("<IQ")
"""Bytes of the text, and of all buffers."""


class ProtocolError(ValueError):
    """The other end sent something that does not belong here."""


class UsedUp(ProtocolError):
    """The ranks of a run have sent what all of them may. `rank` has sent the most."""

    def __init__(self, rank: int, sent: int, allowed: int) -> None:
        super().__init__(f"it sent {sent} bytes, of {allowed} that all ranks of a run may send together")
        self.rank = rank


class Allowance:
    """So many bytes may come in from all ranks of a run together."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.left = nbytes
        self.shares: list[Share] = []

    def share(self, rank: int) -> Share:
        """Through which this rank takes of it."""
        self.shares.append(Share(self, rank))
        return self.shares[-1]

    def end(self) -> None:
        """From now on not even nothing may come in."""
        self.left = -1

    @property
    def ended(self) -> bool:
        return self.left < 0


class Share:
    """What one rank takes of an allowance."""

    def __init__(self, whole: Allowance, rank: int) -> None:
        self.rank = rank
        self.taken = 0
        """With what it was refused."""
        self._whole = whole

    def take(self, nbytes: int) -> None:
        """Raises `UsedUp` when there are not so many left, which need not be this rank's doing."""
        whole = self._whole
        self.taken += nbytes
        if nbytes > whole.left:
            most = max([self, *whole.shares], key=lambda share: share.taken)
            raise UsedUp(most.rank, most.taken, whole.nbytes)
        whole.left -= nbytes


class Line:
    """One end of the connection."""

    def __init__(self, connection: socket.socket, share: Share | None = None) -> None:
        self._connection = connection
        self._share = share
        self._reader = connection.makefile("rb")

    def send(self, message: Any) -> None:
        self._connection.sendall(encode(message))

    def receive(self) -> Any:
        """The next message, or None at the end of the stream. Raises `ProtocolError`."""
        prefix = self._reader.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            return None
        text_bytes, buffer_bytes = _PREFIX.unpack(prefix)
        if text_bytes > MAX_TEXT_BYTES or text_bytes + buffer_bytes > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {text_bytes} + {buffer_bytes} bytes")
        if self._share is not None:
            self._share.take(text_bytes + buffer_bytes)
        body = self._reader.read(text_bytes + buffer_bytes)
        return decode(body, text_bytes) if len(body) == text_bytes + buffer_bytes else None

    def has_come_in(self) -> bool:
        """Is there something to read, or the end of the stream?"""
        self._connection.setblocking(False)
        try:
            if self._reader.peek(1):
                return True
        finally:
            self._connection.setblocking(True)
        return bool(select.select([self._connection], [], [], 0)[0])

    def hang_up(self) -> None:
        """The other end reads an end of file."""
        self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._reader.close()
        self._connection.close()


def encode(message: Any) -> bytes:
    """Plain data, tensors and bytes as one message. Raises `ProtocolError` when it is larger than any may be."""
    buffers: list[bytes] = []
    left = MAX_MESSAGE_BYTES

    def keep(data: bytes) -> None:
        # one value may stand in an answer a hundred thousand times, for somebody who asks for it so often
        nonlocal left
        left -= len(data)
        if left < 0:
            raise ProtocolError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        buffers.append(data)

    def put_aside(value: Any) -> dict[str, list[Any]]:
        if isinstance(value, bytes):
            keep(value)
            return {"bytes": [len(value)]}
        if wire.is_plain_tensor(value):
            data = wire.raw_bytes(value)
            keep(data)
            return {"tensor": [len(data), str(value.dtype), list(value.shape)]}
        raise TypeError(f"a {type(value).__name__} cannot be sent to other ranks")

    text = json.dumps(message, default=put_aside).encode()
    return b"".join((_PREFIX.pack(len(text), sum(map(len, buffers))), text, *buffers))


def decode(body: bytes, text_bytes: int) -> Any:
    """The inverse of `encode`, without the prefix. Raises `ProtocolError`."""
    place = text_bytes

    def take_back(found: dict[str, Any]) -> bytes | torch.Tensor:
        nonlocal place
        match found:
            case {"bytes": [int(length)]} if 0 <= length <= len(body) - place:
                data = body[place : place + length]
                place += length
                return data
            case {"tensor": [int(length), str(dtype), [*shape]]} if 0 <= length <= len(body) - place:
                data = body[place : place + length]
                place += length
                return wire.tensor_from(data, dtype, shape)
        raise ProtocolError("an unknown kind of value")

    try:
        return json.loads(body[:text_bytes], object_hook=take_back)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # JSONDecodeError is a ValueError, too
        raise ProtocolError(f"no message: {error}"[:200]) from None
