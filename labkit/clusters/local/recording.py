"""What a real rank sends and receives, recorded by a process group that notes each call and passes it on."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.clusters.program import call_site
from labkit.clusters.torch_versions import Work, dress_group
from labkit.trace import Event, Kind, Trace

MAX_EVENTS = 200_000
"""Of one rank. What comes later is counted and left out, so that a long training does not fill the memory."""


class Recorder:
    """The events of this rank; `now` gives the seconds since the job began. Safe to use from any thread."""

    def __init__(self, rank: int, world_size: int, now: Callable[[], float]) -> None:
        self.rank = rank
        self.left_out = 0
        self._world_size = world_size
        self._now = now
        self._groups: dict[str, tuple[int, ...]] = {}
        self._collectives: defaultdict[str, int] = defaultdict(int)
        self._started: list[Operation] = []
        self._lock = threading.Lock()

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        """A process group was made."""
        self._groups[name] = ranks

    def collective(self, group: str, name: str, nbytes: int) -> Operation:
        """A collective begins."""
        with self._lock:
            sequence = self._collectives[group]
            self._collectives[group] += 1
        return self._start(Kind.COLLECTIVE, name, nbytes, None, group, sequence, call_site()[1])

    def message(self, group: str, kind: Kind, fallback: str, nbytes: int, peer: int | None) -> Operation:
        """A send or receive begins; `fallback` names it when none of torch.distributed's functions was called."""
        name, line = call_site()
        return self._start(kind, name or fallback, nbytes, peer, group, -1, line)

    def _start(self, *what: Any) -> Operation:
        operation = Operation(self._now, *what)
        with self._lock:
            if len(self._started) < MAX_EVENTS:
                self._started.append(operation)
            else:
                self.left_out += 1
        return operation

    def trace(self) -> Trace:
        """All until now. What nobody has waited for ends now."""
        now = self._now()
        events = [operation.event(self.rank, now) for operation in list(self._started)]
        return Trace(self._world_size, events, "measured", dict(self._groups))


class Operation:
    """One operation under way."""

    def __init__(
        self,
        now: Callable[[], float],
        kind: Kind,
        name: str,
        nbytes: int,
        peer: int | None,
        group: str,
        sequence: int,
        line: str,
    ) -> None:
        self.peer = peer
        self.from_anybody = kind is Kind.RECEIVE and peer is None
        self._what = (kind, name, nbytes, group, sequence, line)
        self._now = now
        self._start = now()
        self._end: float | None = None

    def end(self, *_: object) -> None:
        """It is complete; the first time counts."""
        if self._end is None:
            self._end = self._now()

    def event(self, rank: int, now: float) -> Event:
        kind, name, nbytes, group, sequence, line = self._what
        end = now if self._end is None else self._end
        return Event(rank, kind, name, self._start, end, nbytes, self.peer, group, sequence, line)


class RecordedWork(Work):  # type: ignore[misc]  # a C++ class without types
    """Something under way that does not say when it ends: as far as anybody can know, when it is waited for."""

    def __init__(self, real: Any, operation: Operation, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self._real = real
        self._operation = operation
        self._ranks = ranks

    def wait(self, *timeout: Any) -> bool:
        done: bool = self._real.wait(*timeout)
        self._ended()
        return done

    def is_completed(self) -> bool:
        done: bool = self._real.is_completed()
        if done:
            self._ended()
        return done

    def _ended(self) -> None:
        if self._operation.from_anybody:
            self._operation.peer = self._ranks[self._real._source_rank()]
        self._operation.end()

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
        return self._real.get_future()


class RecordingProcessGroup(dist.ProcessGroup):
    """A gloo group whose calls are recorded, those of DDP's C++ reducer and of functional collectives too."""

    def __init__(self, real: dist.ProcessGroup, ranks: tuple[int, ...], recorder: Recorder) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # as torch's own Python groups do
        self._real = real
        self._ranks = ranks
        self._recorder = recorder
        self._label = real.group_name
        dress_group(self, real)
        recorder.group(self._label, ranks)

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> RecordedWork:
        operation = self._message(Kind.SEND, "send", tensors, self._ranks[to])
        return RecordedWork(self._real.send(tensors, to, tag), operation, self._ranks)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> RecordedWork:
        operation = self._message(Kind.RECEIVE, "recv", tensors, self._ranks[source])
        return RecordedWork(self._real.recv(tensors, source, tag), operation, self._ranks)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> RecordedWork:
        operation = self._message(Kind.RECEIVE, "recv", tensors, None)
        return RecordedWork(self._real.recv_anysource(tensors, tag), operation, self._ranks)

    def _message(self, kind: Kind, fallback: str, tensors: list[Tensor], peer: int | None) -> Operation:
        return self._recorder.message(self._label, kind, fallback, _nbytes(tensors), peer)

    def _collective(self, name: str, inputs: Any, waited_for_at_once: bool, call: Callable[[], Any]) -> Any:
        operation = self._recorder.collective(self._label, name, _nbytes(inputs))
        work = call()
        if waited_for_at_once:
            # a callback costs much: gloo's thread must get hold of the interpreter for it
            return RecordedWork(work, operation, self._ranks)
        try:
            work.get_future().add_done_callback(operation.end)
        except RuntimeError:  # gloo has no future for some
            return RecordedWork(work, operation, self._ranks)
        return work

    def shutdown(self) -> None:
        self._real.shutdown()

    def abort(self) -> None:
        self._real.abort()


def _recorded(method: str, name: str, input_index: int | None) -> Callable[..., Any]:
    def call(self: RecordingProcessGroup, *args: Any, **options: Any) -> Any:
        inputs = () if input_index is None else args[input_index]
        waited_for_at_once = any(getattr(arg, "asyncOp", None) is False for arg in (*args[-1:], *options.values()))
        return self._collective(name, inputs, waited_for_at_once, lambda: getattr(self._real, method)(*args, **options))

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
