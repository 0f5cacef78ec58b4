"""A process group that notes each call and passes it on to the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.clusters.local.recording import Group, Operation, ends
from labkit.clusters.torch_versions import Work, dress_group, gloo_group
from labkit.trace import Kind


class RecordedWork(Work):  # type: ignore[misc]  # typed as Any, see torch_versions
    """Something under way. A message does not say when it ends: as far as anybody can know, when it is waited for."""

    def __init__(self, real: Any, operation: Operation, group: Group, tag: int | None = None) -> None:
        """`tag`: that of a message from anybody."""
        super().__init__()
        self._real = real
        self._operation = operation
        self._group = group
        self._tag = tag

    def wait(self, *timeout: Any) -> bool:
        recorder = self._group.recorder
        recorder.rests()
        self._operation.wait()
        try:
            done: bool = self._real.wait(*timeout)
            self._ended()
            return done
        finally:
            self._operation.end()
            recorder.computes()

    def is_completed(self) -> bool:
        done: bool = self._real.is_completed()
        if done:
            self._ended()
        return done

    def _ended(self) -> None:
        if self._tag is None:
            self._operation.end()
        elif not self._operation.over:
            peer = self._group.ranks[self._source_rank()]
            self._operation.end(peer, self._group.number(Kind.RECEIVE, peer, self._tag))

    def __del__(self) -> None:
        # nobody will ever wait for it, unless its future tells
        if self._tag is not None or not self._has_future:
            self._operation.end()

    _has_future = False

    def tell_by_future(self) -> None:
        """It ends when its future says so, before anybody waits."""
        try:
            self._real.get_future().add_done_callback(ends(self._operation))
            self._has_future = True
        except RuntimeError:  # gloo has none for messages, and for some collectives
            pass

    def _source_rank(self) -> int:
        return int(self._real._source_rank())

    source_rank = _source_rank

    def is_success(self) -> bool:
        return bool(self._real.is_success())

    def exception(self) -> Any:
        return self._real.exception()

    def synchronize(self) -> None:
        self._real.synchronize()

    def result(self) -> Any:
        return self._real.result()

    def get_future(self) -> Any:
        self._group.recorder.awaited_after_backward(self._operation)
        return self._real.get_future()


class RecordingProcessGroup(dist.ProcessGroup):
    """A gloo group whose calls are recorded, those of DDP's C++ reducer and of functional collectives too."""

    def __init__(self, real: dist.ProcessGroup, group: Group) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # as torch's own Python groups do
        self._real: Any = real
        self._group = group
        dress_group(self, real)

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> RecordedWork:
        operation = self._group.message(Kind.SEND, "send", _nbytes(tensors), self._group.ranks[to], tag)
        return self._under_way(operation, lambda: self._real.send(tensors, to, tag))

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> RecordedWork:
        operation = self._group.message(Kind.RECEIVE, "recv", _nbytes(tensors), self._group.ranks[source], tag)
        return self._under_way(operation, lambda: self._real.recv(tensors, source, tag))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> RecordedWork:
        operation = self._group.message(Kind.RECEIVE, "recv", _nbytes(tensors), None, tag)
        return self._under_way(operation, lambda: self._real.recv_anysource(tensors, tag), tag)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        operation = self._group.collective("monitored_barrier", 0)
        operation.wait()
        try:
            self._real.monitored_barrier(timeout, wait_all_ranks)
        finally:
            operation.end()
            self._group.recorder.computes()

    def _under_way(self, operation: Operation, call: Callable[[], Any], tag: int | None = None) -> RecordedWork:
        """The work of `call`, beside which the program goes on."""
        try:
            return RecordedWork(call(), operation, self._group, tag)
        except BaseException:
            operation.end()
            raise
        finally:
            self._group.recorder.computes()

    def _collective(self, name: str, inputs: Any, waited_for_at_once: bool, call: Callable[[], Any]) -> RecordedWork:
        operation = self._group.collective(name, _nbytes(inputs))
        if not waited_for_at_once:
            work = self._under_way(operation, call)
            work.tell_by_future()
            return work
        # without a callback, which costs much: gloo's thread must get hold of the interpreter for it
        try:
            return RecordedWork(call(), operation, self._group)
        except BaseException:
            operation.end()
            self._group.recorder.computes()
            raise

    def connect_again(self, store: Any) -> None:
        """Make new connections, at a new `store`; what was under way is forgotten. All members must do it."""
        self._real = gloo_group(store, self._real)

    def shutdown(self) -> None:
        self._real.shutdown()

    def abort(self) -> None:
        self._real.abort()


def _recorded(method: str, name: str, input_index: int | None) -> Callable[..., Any]:
    def call(self: RecordingProcessGroup, *args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        inputs = () if input_index is None else given[input_index]
        at_once = any(getattr(arg, "asyncOp", None) is False for arg in given[-1:])
        return self._collective(name, inputs, at_once, lambda: getattr(self._real, method)(*args, **options))

    call.__name__ = method
    return call


# method of a process group -> what the field calls it, and which argument holds this rank's input
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
