"""The record of a rank that runs ahead of the virtual clock: what it did, in order, for the replay to read.

A float is the seconds of an operator, an int a change of memory: plus or minus bytes, which are whole blocks, with the
category in the low bits. Everything else is a tuple that begins with its kind. `marshal` packs it: both ends are
processes of one run, forked from one another.
"""

from __future__ import annotations

import marshal
import socket
import struct
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.virtual.scheduler.collectives import has_data
from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.transport import wire

CATEGORY_BITS = 0x1FF
"""Bits of a change of memory that hold its category: a block has 512 bytes."""
_LENGTH = struct.Struct("<Q")


# What a rank did; the fields of each are those of the replay's method. The rank waits for the answer of the last ones.
(
    SEND, RECEIVE, COLLECTIVE, STORE, WAIT, DONE_AT, MOMENT, LATER, SLEEP_UNTIL, TICK, WORK, JOIN, LEAVE,
    MOVED, MEMORY_ENDS, OUTPUT, NOTE, RESULT, END,
    ASK_ARRIVED, ASK_DONE, ASK_SLEPT, ASK_CLOCK, ASK_SECONDS, ASK_TURN, ASK_FILE,
) = range(26)  # fmt: skip


class Shape:
    """A tensor without data, as far as the scheduler looks at it."""

    is_meta = True
    __slots__ = ("_numel", "dtype", "nbytes")

    def __init__(self, dtype: torch.dtype, numel: int) -> None:
        self.dtype, self._numel, self.nbytes = dtype, numel, numel * dtype.itemsize

    def numel(self) -> int:
        return self._numel

    def element_size(self) -> int:
        return self.dtype.itemsize


def packed(tensor: Tensor) -> tuple[Any, ...]:
    """A tensor as plain data: dtype, elements, bytes; without the last if it has none."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not has_data(tensor):
        return dtype, tensor.numel()
    with torch.no_grad(), DisableTorchDispatch():
        return dtype, tensor.numel(), wire.raw_bytes(tensor)


def unpacked(data: tuple[Any, ...]) -> Any:
    """The inverse of `packed`: a flat tensor, or its `Shape`."""
    name, numel, *rest = data
    dtype = getattr(torch, name)
    if not rest:
        return Shape(dtype, numel)
    with DisableTorchDispatch():
        return wire.tensor_from(rest[0], f"torch.{name}", [numel])


class Channel:
    """One end of the connection between a process that runs ranks ahead and the one that replays them."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb")

    def send(self, message: Any) -> None:
        data = marshal.dumps(message)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """The next message. Raises EOFError at the end of the stream."""
        prefix = self._reader.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            raise EOFError
        data = self._reader.read(_LENGTH.unpack(prefix)[0])
        return marshal.loads(data)

    def has_come_in(self) -> bool:
        """Whether there is something to read."""
        self._socket.setblocking(False)
        try:
            return bool(self._reader.peek(1))
        finally:
            self._socket.setblocking(True)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()
