"""Frames on a stream: a JSON header and raw bytes, behind their lengths. Decoding is safe on untrusted bytes.

`Decoder` splits a stream that arrives in pieces; `receive` waits for one frame of a trusted peer.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

PREFIX = struct.Struct("<IQ")
"""Lengths in bytes of a frame's text, and of the raw bytes after it."""
MAX_HEADER_BYTES = 64 << 10


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame that is too large."""


def joined(text: bytes, *parts: bytes) -> bytes:
    """One frame of a text and raw bytes, which may come in parts."""
    return b"".join((PREFIX.pack(len(text), sum(map(len, parts))), text, *parts))


def encode(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """One frame with a JSON header."""
    return joined(json.dumps(header).encode(), payload)


class Decoder:
    """Splits a stream into frames, each as (header, payload)."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Process the next bytes and yield the complete frames. Raises `FrameError`."""
        self._buffer += data
        while len(self._buffer) >= PREFIX.size:
            header_bytes, payload_bytes = PREFIX.unpack_from(self._buffer)
            _check_lengths(header_bytes, payload_bytes, self._max_payload_bytes)
            start = PREFIX.size + header_bytes
            if len(self._buffer) < start + payload_bytes:
                return
            header = _header(bytes(self._buffer[PREFIX.size : start]))
            payload = bytes(self._buffer[start : start + payload_bytes])
            del self._buffer[: start + payload_bytes]
            yield header, payload


def receive(connection: socket.socket, max_payload_bytes: int) -> tuple[bytearray, bytearray]:
    """Wait for one frame, and return its text and its raw bytes.

    Raises `EOFError` if the peer has closed the connection, before the frame or within it, and `FrameError` if the
    frame is too large.
    """
    text_bytes, payload_bytes = PREFIX.unpack(receive_exactly(connection, PREFIX.size))
    _check_lengths(text_bytes, payload_bytes, max_payload_bytes)
    return receive_exactly(connection, text_bytes), receive_exactly(connection, payload_bytes)


def receive_exactly(connection: socket.socket, nbytes: int) -> bytearray:
    """Wait for the next `nbytes` bytes. Raises `EOFError` if the peer closes the connection before."""
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if received == 0:
            raise EOFError(f"the peer closed the connection after {nbytes - len(view)} of {nbytes} bytes")
        view = view[received:]
    return data


def _check_lengths(text_bytes: int, payload_bytes: int, max_payload_bytes: int) -> None:
    if text_bytes > MAX_HEADER_BYTES or payload_bytes > max_payload_bytes:
        raise FrameError(f"a frame of {payload_bytes} bytes, {max_payload_bytes} are allowed")


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a header that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FrameError("a header that is not an object")
    return header
