"""Requests among the lab's own processes, as pickles. Only trusted peers may send them: reading one runs code.

A notebook's kernel, a grader or an agent sends them to the processes that it starts. Nothing that a rank sends back is
read here: values of ranks travel in the wire format.
"""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Sequence
from typing import Any

import torch

from labkit.transport import descriptors, frames, wire

_MAX_BYTES = 1 << 40
"""A greater length is no length: the stream is broken."""


def dumps(value: Any) -> bytes:
    """Pickle anything; tensors as their bytes."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def loads(data: bytes | bytearray) -> Any:
    """The inverse of `dumps`. Runs code of whoever has made `data`."""
    return pickle.loads(data)


def send(connection: socket.socket, value: Any, files: Sequence[int] = ()) -> None:
    """Send a request as one frame, and file descriptors after it."""
    connection.sendall(frames.joined(b"", dumps(value)))
    descriptors.send(connection, files)


def receive(connection: socket.socket) -> Any:
    """Wait for a request; its sender is trusted. `descriptors.receive` returns its files.

    Raises `EOFError` if the sender is gone.
    """
    _, data = frames.receive(connection, _MAX_BYTES)
    return loads(data)


class _Pickler(pickle.Pickler):
    """Pickles tensors as their bytes: torch's own way takes a millisecond for each, and as long to read."""

    def reducer_override(self, value: Any) -> Any:
        if not (type(value) is torch.Tensor and wire.is_plain_tensor(value)):
            return NotImplemented
        # only a tensor that is all of its memory, in order: otherwise others may share it
        if value.requires_grad or not value.is_contiguous() or value.untyped_storage().nbytes() != value.nbytes:
            return NotImplemented
        return wire.tensor_from, (wire.raw_bytes(value), str(value.dtype), list(value.shape))
