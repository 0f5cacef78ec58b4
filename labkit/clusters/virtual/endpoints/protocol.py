"""The protocol between the scheduler and a process rank: messages over a socket, one after the other.

A message is a frame (`labkit.transport.frames`): JSON text followed by raw buffers, which hold the bytes and tensors in
it; sequences arrive as lists. Reading one is safe on bytes from untrusted code.

The text differs from that of other frames because every call of every rank waits for a message: one pass of `json` puts
tensors and bytes aside, and no tree is built first, as the wire format needs for values of any kind. So do the limits:
of the text, and of what all ranks of a run send together.
"""

from __future__ import annotations

import json
import select
import socket
from typing import Any

import torch

from labkit.transport import frames, wire

MAX_MESSAGE_BYTES = 256 << 20
MAX_TEXT_BYTES = 1 << 20
"""Three bytes of it can encode a list, which takes twenty times as much memory."""
ENDED = "the scheduler ended this rank"


class ProtocolError(ValueError):
    """The other end sent something that the protocol does not allow."""


class QuotaExceeded(ProtocolError):
    """The ranks of a run have sent more than their common limit. `rank` has sent the most."""

    def __init__(self, rank: int, sent: int, allowed: int) -> None:
        super().__init__(f"it sent {sent} bytes, of {allowed} that all ranks of a run may send together")
        self.rank = rank


class ByteQuota:
    """Limit on the bytes received from all ranks of a run together."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = self.left = nbytes
        self.quotas: list[RankQuota] = []

    def for_rank(self, rank: int) -> RankQuota:
        """A quota of this rank, which counts towards the limit."""
        self.quotas.append(RankQuota(self, rank))
        return self.quotas[-1]

    def end(self) -> None:
        """Refuse everything from now on, even zero bytes."""
        self.left = -1

    @property
    def ended(self) -> bool:
        return self.left < 0


class RankQuota:
    """The part of the byte quota that one rank has used."""

    def __init__(self, whole: ByteQuota, rank: int) -> None:
        self.rank = rank
        self.taken = 0
        """Bytes sent, including a refused message."""
        self._whole = whole

    def take(self, nbytes: int) -> None:
        """Count `nbytes`. Raises `QuotaExceeded` when the limit is exceeded, which need not be this rank's fault."""
        whole = self._whole
        self.taken += nbytes
        if nbytes > whole.left:
            most = max([self, *whole.quotas], key=lambda quota: quota.taken)
            raise QuotaExceeded(most.rank, most.taken, whole.nbytes)
        whole.left -= nbytes


class Connection:
    """One end of the connection."""

    def __init__(self, sock: socket.socket, quota: RankQuota | None = None) -> None:
        self._socket = sock
        self._quota = quota
        self._reader = sock.makefile("rb")

    def send(self, message: Any) -> None:
        self._socket.sendall(encode(message))

    def receive(self) -> Any:
        """The next message, or None at the end of the stream. Raises `ProtocolError`."""
        prefix = self._reader.read(frames.PREFIX.size)
        if len(prefix) < frames.PREFIX.size:
            return None
        text_bytes, buffer_bytes = frames.PREFIX.unpack(prefix)
        if text_bytes > MAX_TEXT_BYTES or text_bytes + buffer_bytes > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {text_bytes} + {buffer_bytes} bytes")
        if self._quota is not None:
            self._quota.take(text_bytes + buffer_bytes)
        body = self._reader.read(text_bytes + buffer_bytes)
        return decode(body, text_bytes) if len(body) == text_bytes + buffer_bytes else None

    def has_come_in(self) -> bool:
        """Whether there is data to read, or the end of the stream."""
        self._socket.setblocking(False)
        try:
            if self._reader.peek(1):
                return True
        finally:
            self._socket.setblocking(True)
        return bool(select.select([self._socket], [], [], 0)[0])

    def hang_up(self) -> None:
        """Close the connection: the other end reads an end of file."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


def encode(message: Any) -> bytes:
    """Plain data, tensors and bytes as one message. Raises `ProtocolError` if it is larger than the maximum."""
    buffers: list[bytes] = []
    left = MAX_MESSAGE_BYTES

    def keep(data: bytes) -> None:
        # one value may occur in an answer a hundred thousand times, for a rank that requests it so often
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

    text = json.dumps(message, default=put_aside).encode()  # fills the buffers
    return frames.joined(text, *buffers)


def decode(body: bytes, text_bytes: int) -> Any:
    """The inverse of `encode`, without the prefix. Raises `ProtocolError`."""
    place = text_bytes

    def take_back(encoded: dict[str, Any]) -> bytes | torch.Tensor:
        nonlocal place
        match encoded:
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
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # includes JSONDecodeError, a ValueError
        raise ProtocolError(f"no message: {error}"[:200]) from None
