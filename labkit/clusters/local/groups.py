"""A process group that records each call and passes it on to the real one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.clusters.local.gpu import Gpu
from labkit.clusters.local.recording import Group, Operation
from labkit.torch_versions.groups import DelegatingWork, dress_group, gloo_group
from labkit.trace import Kind

_NOTHING: dict[str, Any] = {}


class RecordedWork(DelegatingWork):
    """An operation under way. It ends when its future does; without a future, when it is waited for.

    `__del__` runs as soon as the last reference is gone: an operation with a future outlives it.
    """

    def __init__(self, real: Any, operation: Operation) -> None:
        super().__init__(real)
        self._operation = operation

    def wait(self, *timeout: Any) -> bool:
        operation = self._operation
        recorder = operation.recorder
        recorder.rests()
        operation.wait()
        try:
            done = super().wait(*timeout)
            self._done()
            return done
        finally:
            operation.end()
            recorder.computes()

    def is_completed(self) -> bool:
        done = super().is_completed()
        if done:
            self._done()
        return done

    def _done(self) -> None:
        self._operation.end()

    def get_future(self) -> Any:
        future = super().get_future()
        self._operation.awaited_by(future)
        return future

    def __del__(self) -> None:
        self._operation.dropped()


class MessageFromAnybody(RecordedWork):
    """A receive from any rank, which learns its sender."""

    def __init__(self, real: Any, operation: Operation, group: Group, tag: int) -> None:
        super().__init__(real, operation)
        self._group = group
        self._tag = tag

    def _done(self) -> None:
        if not self._operation.over:
            peer = self._group.ranks[self._source_rank()]
            self._operation.end(peer, self._group.number(Kind.RECEIVE, peer, self._tag))


class WorkOnGpu(RecordedWork):
    """An operation on a stream. Its `wait()` makes a stream wait, not the program."""

    def __init__(self, real: Any, operation: Operation, gpu: Gpu) -> None:
        super().__init__(real, operation)
        self._gpu = gpu

    def wait(self, *timeout: Any) -> bool:
        with self._gpu.waiting():
            return bool(self._real.wait(*timeout))

    def synchronize(self) -> None:
        with self._gpu.waiting():
            self._real.synchronize()

    def _done(self) -> None:
        """Do nothing: the marks show the end."""


class RecordingProcessGroup(dist.ProcessGroup):
    """A group whose calls are recorded, including those of DDP's C++ reducer and of functional collectives."""

    def __init__(self, real: dist.ProcessGroup, group: Group) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # as torch's own Python groups do
        self._real: Any = real
        self._group = group
        group.on_gpu = dress_group(self, real)
        self._together: list[tuple[Operation, Any, float, Any]] | None = None
        """Operations collected for one coalesced call: each with its first mark, time of request and arguments."""

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Any:
        operation = self._group.message(Kind.SEND, "send", _nbytes(tensors), self._peer(to, "send to"), tag)
        return self._under_way(RecordedWork, operation, self._real.send, (tensors, to, tag))

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        operation = self._group.message(Kind.RECEIVE, "recv", _nbytes(tensors), self._peer(source, "receive from"), tag)
        return self._under_way(RecordedWork, operation, self._real.recv, (tensors, source, tag))

    def _peer(self, number: int, verb: str) -> int:
        """The global rank of a member. For a wrong number gloo itself crashes, or reports broken connections."""
        ranks = self._group.ranks
        if not 0 <= number < len(ranks):
            raise IndexError(f"cannot {verb} rank {number} of a group that has ranks 0 to {len(ranks) - 1}")
        if number == self.rank() and not self._group.on_gpu:
            raise RuntimeError(f"rank {ranks[number]} cannot {verb} itself: gloo has no connection for that")
        return ranks[number]

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        operation = self._group.message(Kind.RECEIVE, "recv", _nbytes(tensors), None, tag)
        kind = functools.partial(MessageFromAnybody, group=self._group, tag=tag)
        return self._under_way(kind, operation, self._real.recv_anysource, (tensors, tag))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        operation = self._group.collective("monitored_barrier", 0)
        operation.wait()
        try:
            self._real.monitored_barrier(timeout, wait_all_ranks)
        finally:
            operation.end()
            self._group.recorder.computes()

    def _collective(self, name: str, inputs: Any, call: Callable[..., Any], args: Any, options: Any) -> Any:
        operation = self._group.collective(name, _nbytes(inputs))
        # set by dist.all_reduce and the like if they wait at once
        at_once = any([getattr(argument, "asyncOp", None) is False for argument in (*args[-1:], *options.values())])
        if self._group.on_gpu or not at_once:
            return self._under_way(RecordedWork, operation, call, args, options, at_once, has_future=True)
        try:
            return RecordedWork(call(*args, **options), operation)
        except BaseException:
            operation.end()
            self._group.recorder.computes()
            raise

    def _under_way(
        self,
        kind: Callable[[Any, Operation], RecordedWork],
        operation: Operation,
        call: Callable[..., Any],
        args: Any,
        options: Any = _NOTHING,
        at_once: bool = False,
        has_future: bool = False,
    ) -> Any:
        """Call `call` and return its work, beside which the program goes on."""
        recorder = self._group.recorder
        try:
            if self._group.on_gpu:
                tensor = _first_tensor(args)
                if tensor is not None and tensor.is_cuda and not torch.cuda.is_current_stream_capturing():
                    return self._on_stream(recorder.gpu(tensor.device.index), operation, call, args, options, at_once)
                has_future = has_future and tensor is not None
            work = call(*args, **options)
            if work is None:  # NCCL's barrier, which has waited
                operation.end()
                return None
            # not needed so soon without a trace: the callback makes gloo's thread wait for the interpreter
            if has_future and recorder.tracing:
                with suppress(RuntimeError):  # gloo has no future for some operations
                    operation.told_by(work.get_future())
            return kind(work, operation)
        except BaseException:
            operation.end()
            raise
        finally:
            recorder.computes()

    def _on_stream(
        self, gpu: Gpu, operation: Operation, call: Callable[..., Any], args: Any, options: Any, at_once: bool
    ) -> Any:
        """Call `call`, which puts work on a stream of the GPU, and return its work."""
        operation.marked = True
        computes, start, asked = gpu.computes_here(), gpu.here(), time.monotonic()
        if computes:
            gpu.times.computing_ends(start)
        work = call(*args, **options)
        last = start
        if self._together is not None:
            self._together.append((operation, start, asked, args))
        else:
            # an operation that its caller waits for at once runs on the caller's stream
            end = gpu.here() if at_once else gpu.after(work, self._group.label)
            gpu.last(operation.row, operation.end, start, end, asked, (args, options))
            last = end if at_once else start
        if computes:
            gpu.times.computing_begins(last, time.monotonic())
        return None if work is None else WorkOnGpu(work, operation, gpu)

    def _start_coalescing(self, device: torch.device) -> None:
        self._together = []
        self._real._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        work = self._real._end_coalescing(device)
        together, self._together = self._together or [], None
        if not together:
            return work
        gpu = self._group.recorder.gpu(device.index if device.index is not None else torch.cuda.current_device())
        end = gpu.after(work, self._group.label)
        for operation, start, asked, args in together:
            gpu.last(operation.row, operation.end, start, end, asked, args)
        return WorkOnGpu(work, together[-1][0], gpu)

    def connect_again(self, store: Any) -> None:
        """Connect again through a new `store`; operations under way are forgotten. All members must call it."""
        self._real = gloo_group(store, self._real)

    def shutdown(self) -> None:
        self._real.shutdown()

    def abort(self) -> None:
        self._real.abort()


def _recorded(method: str, name: str, input_index: int | None) -> Callable[..., Any]:
    def call(self: RecordingProcessGroup, *args: Any, **options: Any) -> Any:
        arguments = (*args, *options.values()) if options else args
        inputs = () if input_index is None else arguments[input_index]
        return self._collective(name, inputs, getattr(self._real, method), args, options)

    call.__name__ = method
    return call


# method of a process group -> its name in torch.distributed, and the index of the argument with this rank's input
for _method, _name, _input_index in (
    ("allreduce", "all_reduce", 0),
    ("allreduce_coalesced", "all_reduce", 0),
    ("reduce", "reduce", 0),
    ("broadcast", "broadcast", 0),
    ("barrier", "barrier", None),
    ("allgather", "all_gather", 1),
    ("allgather_coalesced", "all_gather", 1),
    ("all_gather_single", "all_gather", 1),
    ("_allgather_base", "all_gather", 1),
    ("all_gather_single_coalesced", "all_gather", 1),
    ("allgather_into_tensor_coalesced", "all_gather", 1),
    ("gather", "gather", 1),
    ("scatter", "scatter", 1),
    ("reduce_scatter", "reduce_scatter", 1),
    ("reduce_scatter_single", "reduce_scatter", 1),
    ("_reduce_scatter_base", "reduce_scatter", 1),
    ("reduce_scatter_single_coalesced", "reduce_scatter", 1),
    ("reduce_scatter_tensor_coalesced", "reduce_scatter", 1),
    ("alltoall", "all_to_all", 1),
    ("all_to_all_single", "all_to_all", 1),
    ("alltoall_base", "all_to_all", 1),
):
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordingProcessGroup, _method, _recorded(_method, _name, _input_index))


def _nbytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_nbytes, tensors)) if isinstance(tensors, Iterable) else 0


def _first_tensor(args: Any) -> Tensor | None:
    for argument in args:
        tensor = argument if isinstance(argument, Tensor) else None
        if isinstance(argument, (list, tuple)):
            tensor = _first_tensor(argument)
        if tensor is not None:
            return tensor
    return None
