"""Argument transfer for `Job.call`: each rank gets its own arguments, in memory that both ends map.

A job goes whole to every process, so with the arguments in it each rank could look up those of the others. The caller
reads what a rank has left in its tensors from that memory and does not rely on the rank's own report.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.arguments import as_given
from labkit.clusters.job import Job
from labkit.clusters.rank_result import RankResult
from labkit.clusters.run import Run
from labkit.transport import descriptors, frames, wire

_HEAD = struct.Struct("<QQ")
"""Offsets at which the description, which follows the tensors, begins and ends."""
_ALIGNMENT = 64
_SHARED = "labkit:shared"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Without these seals a rank could truncate the file, and the process that reads it would die of SIGBUS."""


class ArgumentTransfer:
    """Arguments for the ranks of one call, on the caller's side."""

    def __init__(self, job: Job) -> None:
        self._given = job.arguments
        self._of_ranks = [_RankArguments(arguments) for arguments in job.arguments]
        self.job = replace(job, arguments=())
        """The job as it is sent: without arguments."""

    def send(self, connections: Sequence[socket.socket]) -> None:
        """Send the arguments: `connections[rank]` leads to that rank, which calls `receive` first."""
        for arguments, connection in zip(self._of_ranks, connections, strict=True):
            connection.sendall(_HEAD.pack(*arguments.lengths))
            descriptors.send(connection, [arguments.descriptor])

    def read(self, run: Run) -> Run:
        """The run with each rank's arguments as they are after all ranks have ended."""
        return replace(run, ranks=[self._read(result) for result in run.ranks])

    def _read(self, result: RankResult) -> RankResult:
        passed = self._given[result.rank]
        if passed is None:
            return replace(result, arguments=(), returned_argument=None)
        shared = self._of_ranks[result.rank].left()
        reported = result.arguments if len(result.arguments) == len(shared) else (None,) * len(shared)
        arguments = tuple(
            ours if _holds_tensors(ours) else theirs for ours, theirs in zip(shared, reported, strict=True)
        )
        index = result.returned_argument
        if index is None or not 0 <= index < len(arguments):
            return replace(result, arguments=arguments, returned_argument=None)
        # the returned value is read from the shared memory, whatever the rank reports
        return replace(result, arguments=arguments, value=arguments[index])

    def close(self) -> None:
        """Release the memory."""
        for arguments in self._of_ranks:
            arguments.close()


def receive(connection: socket.socket, job: Job, rank: int, world_size: int) -> Job:
    """On a rank: `job` with this rank's arguments, and None for those of the others."""
    start, end = _HEAD.unpack(frames.receive_exactly(connection, _HEAD.size))
    (file,) = descriptors.receive(connection, 1)
    memory = mmap.mmap(file, end)
    os.close(file)
    arguments = _unpacked(wire.loads(memory[start:end]), memory)
    return replace(job, arguments=tuple(arguments if other == rank else None for other in range(world_size)))


def without_tensors(result: RankResult) -> RankResult:
    """On a rank: the part of its result that the other end cannot read for itself."""
    arguments = tuple(None if isinstance(argument, Tensor) else argument for argument in result.arguments)
    seen = result.returned_argument is not None and isinstance(result.value, Tensor)
    return replace(result, arguments=arguments, value=None if seen else result.value)


class _RankArguments:
    """The arguments of one rank, in an unnamed file: the tensors, then a description of where each of them is."""

    def __init__(self, arguments: Any) -> None:
        self._args = () if arguments is None else arguments[0]
        self._places: dict[int, int] = {}
        """Offset of each tensor, by its id."""
        tensors: list[Tensor] = []
        self._end = 0

        def place(tensor: Tensor) -> dict[str, Any]:
            if id(tensor) not in self._places:  # a tensor passed twice is stored once
                self._places[id(tensor)] = start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
                self._end = start + tensor.numel() * tensor.element_size()
                tensors.append(tensor)
            return {_SHARED: (self._places[id(tensor)], tensor.dtype, tuple(tensor.shape))}

        description = wire.dumps(_with_tensors(arguments, place))
        self.lengths = self._end, self._end + len(description)
        self.descriptor = os.memfd_create("arguments", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.lengths[1])
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self._memory = mmap.mmap(self.descriptor, self.lengths[1])
        self._memory[self._end :] = description
        for tensor in tensors:
            if tensor.numel():
                _lying_at(self._memory, self._places[id(tensor)], tensor.dtype, tensor.shape).copy_(tensor)

    def left(self) -> tuple[Any, ...]:
        """The positional arguments, with the current contents of their tensors."""

        def read(tensor: Tensor) -> Tensor:
            return _lying_at(self._memory, self._places[id(tensor)], tensor.dtype, tensor.shape).clone()

        return tuple(as_given(_with_tensors(argument, read)) for argument in self._args)

    def close(self) -> None:
        os.close(self.descriptor)


def _with_tensors(value: Any, instead: Callable[[Tensor], Any]) -> Any:
    """`value` with each tensor in it replaced."""
    if isinstance(value, Tensor):
        return instead(value)
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(item, instead) for item in value)
    if type(value) is dict:
        return {name: _with_tensors(item, instead) for name, item in value.items()}
    return value


def _holds_tensors(value: Any) -> bool:
    tensors: list[Tensor] = []
    _with_tensors(value, tensors.append)
    return bool(tensors)


def _unpacked(value: Any, memory: mmap.mmap) -> Any:
    """The value of a description: its tensors are views of `memory`."""
    if type(value) is dict and _SHARED in value:
        return _lying_at(memory, *value[_SHARED])
    if type(value) in (list, tuple):
        return type(value)(_unpacked(item, memory) for item in value)
    if type(value) is dict:
        return {name: _unpacked(item, memory) for name, item in value.items()}
    return value


def _lying_at(memory: mmap.mmap, start: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    numel = math.prod(shape)
    if not numel:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=numel, offset=start).reshape(tuple(shape))
