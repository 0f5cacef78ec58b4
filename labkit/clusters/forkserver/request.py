"""The client's request to a supervisor: one pickle and any number of sockets, over the connection of that run.

This direction is trusted: the lab's own process sends it. Nothing is unpickled in the other direction.
"""

from __future__ import annotations

import array
import io
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch

from labkit.clusters import wire
from labkit.clusters.job import Job

_LENGTH = struct.Struct("<Q")
_SOCKETS_AT_ONCE = 64
SUPERVISOR = "labkit.clusters.forkserver.supervisor:Supervisor"


@dataclass(frozen=True)
class Request:
    """One run. `environments[i]` and `ranks[i]` belong to process i."""

    entry: str
    """`package.module:function`."""
    job: Job
    options: Mapping[str, Any]
    ranks: Sequence[Sequence[int]]
    environments: Sequence[Mapping[str, str]]
    sockets: int
    """Number of sockets that follow: one for each process, or none."""
    timeout: float | None
    """Seconds until all processes are stopped."""
    environment: Mapping[str, str] | None
    """Base environment, to which `environments` are added; None: the forkserver's own."""
    folder: str | None
    """Working directory; None: the forkserver's own."""
    path: Sequence[str] | None
    """`sys.path`; None: the forkserver's own."""
    commands: bool = False
    """Whether each process can receive data while it runs, from `fresh.commands()`."""
    supervisor: str = SUPERVISOR
    """`package.module:Class` of the processes' supervisor."""


def send(connection: socket.socket, request: Request, sockets: Sequence[socket.socket | IO[bytes]]) -> None:
    """Send a request and its sockets, or files."""
    data = _pickled(request)
    connection.sendall(_LENGTH.pack(len(data)) + data)
    for start in range(0, len(sockets), _SOCKETS_AT_ONCE):
        batch = array.array("i", [s.fileno() for s in sockets[start : start + _SOCKETS_AT_ONCE]])
        connection.sendmsg([b"s"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, batch)])


class _Pickler(pickle.Pickler):
    """Pickles tensors as their bytes: torch's own way takes a millisecond for each, and as long to read."""

    def reducer_override(self, value: Any) -> Any:
        if not (type(value) is torch.Tensor and wire.is_plain_tensor(value)):
            return NotImplemented
        # only a tensor that is all of its memory, in order: otherwise others may share it
        if value.requires_grad or not value.is_contiguous() or value.untyped_storage().nbytes() != value.nbytes:
            return NotImplemented
        return wire.tensor_from, (wire.raw_bytes(value), str(value.dtype), list(value.shape))


def _pickled(request: Request) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(request)
    return file.getvalue()


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """The inverse of `send`, with sockets as file descriptors. Raises `EOFError` if the client is gone."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    request: Request = pickle.loads(_receive_exactly(connection, length))
    descriptors: list[int] = []
    while len(descriptors) < request.sockets:
        data, batch, _, _ = socket.recv_fds(connection, 1, _SOCKETS_AT_ONCE)
        if not data:
            raise EOFError
        descriptors += batch
    return request, descriptors


def _receive_exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]
    return data
