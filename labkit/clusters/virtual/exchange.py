"""What goes between the scheduler and a rank that is a process: messages over a socket, one after the other.

A message is a JSON text and raw buffers, which stand for the bytes and tensors in it; sequences arrive as lists.
Reading one is safe on bytes from untrusted code.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import torch

from labkit.clusters import wire

MAX_MESSAGE_BYTES = 256 << 20
MAX_TEXT_BYTES = 1 << 20
"""Three bytes of it can stand for a list, which takes twenty times as much."""
_PREFIX = struct.Struct("<IQ")
"""Bytes of the text, and of all buffers."""


class ProtocolError(ValueError):
    """The other end sent something that does not belong here."""


class Allowance:
    """So many bytes may come in, on all lines that share it."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def take(self, nbytes: int) -> None:
        """Raises `ProtocolError` when there are not so many left."""
        if nbytes > self._left:
            raise ProtocolError(f"a message of {nbytes} bytes, {self._left} are left of what a run may send")
        self._left -= nbytes

    def end(self) -> None:
        """From now on not even nothing may come in."""
        self._left = -1

    @property
    def ended(self) -> bool:
        return self._left < 0


class Line:
    """One end of the connection."""

    def __init__(self, connection: socket.socket, allowance: Allowance | None = None) -> None:
        self._connection = connection
        self._allowance = allowance
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
        if self._allowance is not None:
            self._allowance.take(text_bytes + buffer_bytes)
        body = self._reader.read(text_bytes + buffer_bytes)
        return decode(body, text_bytes) if len(body) == text_bytes + buffer_bytes else None

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
