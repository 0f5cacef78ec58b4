"""torch.profiler with another recorder: Kineto, its own, crashes when two threads of a process record a profile.

The Python part of torch.profiler, with its schedules, tables and handlers, stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import Reducer
from torch._C._profiler import RecordScope
from torch.autograd import profiler
from torch.autograd.profiler_util import MEMORY_EVENT_NAME


@dataclass(frozen=True)
class Recorded:
    """One event of a profile."""

    name: str
    start_ns: int
    end_ns: int
    lane: int
    """Number of the row in which it is drawn."""
    is_annotation: bool = False
    """Whether `torch.profiler.record_function` made it."""
    is_async: bool = False
    """Whether it lasts beyond the call that begins it."""
    shapes: Sequence[Sequence[int]] = ()
    """Shapes of an operator's arguments; empty for one that is no tensor."""
    flops: int = 0
    nbytes: int = 0
    """Bytes that it allocates, less those that it frees."""


class Recorder(Protocol):
    """Records one profile of the rank that calls it."""

    rank: int
    metadata: dict[str, str]
    """JSON by name, for the file's head."""

    def start(self) -> None: ...

    def stop(self) -> Sequence[Recorded]: ...

    def annotate(self, name: str) -> Callable[[], None]:
        """Begin a named span; the returned function ends it."""


class _Event:
    """An event as Kineto's: each property is a method."""

    def __init__(self, **properties: Any) -> None:
        self._properties = {**_OF_ALL, **properties}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name not in _OF_ALL:
            raise AttributeError(name)
        return lambda: self._properties[name]


_OF_ALL: dict[str, Any] = {
    "activity_type": "cpu_op", "concrete_inputs": [], "correlation_id": 0, "cuda_elapsed_us": -1, "device_index": 0,
    "device_resource_id": 0, "device_type": DeviceType.CPU, "dtypes": [], "duration_ns": 0, "end_ns": 0,
    "end_thread_id": 0, "external_id": 0, "extra_meta": {}, "flops": 0, "flow_id": 0, "flow_start": False,
    "flow_type": 0, "fwd_thread_id": 0, "is_async": False, "is_hidden_event": False, "is_python_function": False,
    "is_user_annotation": False, "kwinputs": {}, "linked_correlation_id": 0, "metadata_json": "", "name": "",
    "nbytes": 0, "overload_name": "", "privateuse1_elapsed_us": -1, "python_id": -1, "python_module_id": -1,
    "python_parent_id": -1, "scope": 0, "sequence_nr": -1, "shapes": [], "stack": [], "start_ns": 0,
    "start_thread_id": 0, "structured_input_shapes": [], "structured_input_strides": [],
}  # fmt: skip
"""Properties that torch reads from Kineto's events, and their values for events without them."""


class _Result:
    """A profile as Kineto's."""

    def __init__(self, rank: int, recorded: Sequence[Recorded], metadata: dict[str, str]) -> None:
        self._rank, self._recorded, self._metadata = rank, recorded, metadata

    def trace_start_ns(self) -> int:
        return min((event.start_ns for event in self._recorded), default=0)

    def experimental_event_tree(self) -> list[Any]:
        return []

    def events(self) -> list[_Event]:
        events = []
        for number, event in enumerate(self._recorded, 1):
            lane = {"start_thread_id": event.lane, "end_thread_id": event.lane}
            if event.nbytes:
                when = {"start_ns": event.end_ns, "end_ns": event.end_ns}
                events.append(_Event(name=MEMORY_EVENT_NAME, nbytes=event.nbytes, **lane, **when))
            events.append(
                _Event(
                    **lane,
                    name=event.name,
                    correlation_id=number,
                    start_ns=event.start_ns,
                    end_ns=event.end_ns,
                    duration_ns=event.end_ns - event.start_ns,
                    is_user_annotation=event.is_annotation,
                    is_async=event.is_async,
                    scope=int((RecordScope.USER_SCOPE if event.is_annotation else RecordScope.FUNCTION).value),
                    shapes=[list(shape) for shape in event.shapes],
                    flops=event.flops,
                )
            )
        return events

    def save(self, path: str) -> None:
        """Write the profile in Chrome's format, with Kineto's names: Perfetto opens it. Times are in microseconds."""
        tracks = _tracks(self._recorded)
        events: list[dict[str, Any]] = [
            {
                "ph": "X",
                "cat": "user_annotation" if event.is_annotation else "cpu_op",
                "name": event.name,
                "pid": self._rank,
                "tid": track,
                "ts": event.start_ns / 1000,
                "dur": (event.end_ns - event.start_ns) / 1000,
                "args": {"External id": number, "Input Dims": event.shapes},
            }
            for number, (event, track) in enumerate(zip(self._recorded, tracks, strict=True), 1)
        ]
        name = {"name": f"rank {self._rank}, modelled time"}
        events.append({"ph": "M", "name": "process_name", "pid": self._rank, "tid": 0, "ts": 0, "args": name})
        head = {key: json.loads(value) for key, value in self._metadata.items()}
        Path(path).write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": events}))


def _tracks(recorded: Sequence[Recorded]) -> list[int]:
    """A track for each event, sorted by start: events of one may nest but not cross, or Perfetto leaves them out."""
    open_until: dict[int, list[int]] = {}  # by track: the ends of its events that are not over, the first to end last
    tracks = []
    for event in recorded:
        track = event.lane
        while ends := open_until.setdefault(track, []):
            while ends and ends[-1] <= event.start_ns:
                ends.pop()
            if not ends or event.end_ns <= ends[-1]:
                break
            track += 100
        ends.append(event.end_ns)
        tracks.append(track)
    return tracks


_SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"


def record_with(new: Callable[[Any], Recorder], active: Callable[[], Recorder | None]) -> None:
    """Record each profile with a recorder of its own.

    `new(profile)` makes one for the running rank; profile: torch's, with its options as attributes. `active()` returns
    the rank's recorder between its `start` and its `stop`.
    """

    def prepare(profile: Any) -> None:
        profile.entered = True
        profile.trace_id = profile.create_trace_id()

    def start(profile: Any) -> None:
        if active() is not None:
            raise RuntimeError("this rank is recording another profile: one at a time")
        prepare(profile)
        new(profile).start()

    def stop() -> _Result:
        recorder = active()
        assert recorder is not None
        return _Result(recorder.rank, recorder.stop(), recorder.metadata)

    def add_metadata(name: str, value: str) -> None:
        recorder = active()
        if recorder is not None:
            recorder.metadata[name] = value

    def enter(span: Any) -> Any:
        recorder = active()
        span.end = None if recorder is None else recorder.annotate(span.name)
        return span

    def leave(span: Any, *_: Any) -> None:
        if span.end is not None:
            span.end()

    prepare_for_backward = Reducer.prepare_for_backward

    def search_unused(reducer: Reducer, outputs: Any) -> None:
        """DDP's C++ code records this search, for which DDP passes its outputs."""
        recorder = active()
        end = recorder.annotate(_SEARCH) if recorder is not None and outputs else None
        prepare_for_backward(reducer, outputs)
        if end is not None:
            end()

    replaced: Any = profiler
    reducers: Any = Reducer
    reducers.prepare_for_backward = search_unused
    replaced.profile._prepare_trace, replaced.profile._start_trace = prepare, start
    replaced._disable_profiler = stop
    replaced.record_function.__enter__, replaced.record_function.__exit__ = enter, leave
    autograd: Any = torch.autograd
    autograd._add_metadata_json = add_metadata
    if not hasattr(torch._C, "_nccl_version"):
        # asked for the file's head if a group has the backend nccl
        torch.cuda.nccl.version = tuple
