"""Frames on a stream: a JSON header and raw bytes. Decoding is safe on bytes from untrusted processes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_PREFIX = struct.Struct("<IQ")
MAX_HEADER_BYTES = 64 << 10


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame that is too large."""


def encode(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    text = json.dumps(header).encode()
    return b"".join([_PREFIX.pack(len(text), len(payload)), text, payload])


class Decoder:
    """Splits a stream into frames, each as (header, payload)."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Process the next bytes and yield the complete frames. Raises `FrameError`."""
        self._buffer += data
        while len(self._buffer) >= _PREFIX.size:
            header_bytes, payload_bytes = _PREFIX.unpack_from(self._buffer)
            if header_bytes > MAX_HEADER_BYTES or payload_bytes > self._max_payload_bytes:
                raise FrameError(f"a frame of {payload_bytes} bytes, {self._max_payload_bytes} are allowed")
            start = _PREFIX.size + header_bytes
            if len(self._buffer) < start + payload_bytes:
                return
            header = _header(bytes(self._buffer[_PREFIX.size : start]))
            payload = bytes(self._buffer[start : start + payload_bytes])
            del self._buffer[: start + payload_bytes]
            yield header, payload


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a header that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FrameError("a header that is not an object")
    return header
