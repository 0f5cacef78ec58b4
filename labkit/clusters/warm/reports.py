"""What a process says about its ranks, as frames: results, traces, output. Checked by the client."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from labkit.clusters import wire
from labkit.clusters.run import RankError, RankResult
from labkit.clusters.standing import UnderWay
from labkit.clusters.warm import frames
from labkit.clusters.warm.stacks import Thread
from labkit.trace import Trace
from labkit.trace.packing import pack, unpack

MAX_VALUE_BYTES = 128 << 20
"""Of tensors, arrays and texts in a rank's value: all ranks' values are held by the notebook."""
_MAX_TEXT = 200_000
_MAX_FRAMES = 1_000
_MAX_LOCALS = 8
T = TypeVar("T")


class ReportError(ValueError):
    """A report that is not what it should be: from code that wrote into the lab's own channel, or worse."""


def result_frame(result: RankResult) -> bytes:
    """A rank's result as one frame; what cannot travel goes as `Opaque`."""
    error = dataclasses.asdict(result.error) if result.error else None
    header = {
        "kind": "result",
        "rank": result.rank,
        "exit": result.exit,
        "returned_argument": result.returned_argument,
    }
    try:
        payload = wire.dumps([wire.dumps(result.value, MAX_VALUE_BYTES), result.arguments, error])
    except Exception as problem:  # a learner's object may do anything while it is looked at
        value = wire.Opaque(type(result.value).__name__, f"{type(problem).__name__}: {problem}"[:500])
        payload = wire.dumps([wire.dumps(value), (), error])
    return frames.encode(header, payload)


def trace_frame(trace: Trace) -> bytes:
    """A trace as one frame."""
    return frames.encode({"kind": "trace"}, pack(trace))


def output_frame(rank: int, stream: str, text: str) -> bytes:
    """Something that a rank printed, as one frame."""
    return frames.encode({"kind": "output", "rank": rank, "stream": stream}, text.encode(errors="replace"))


def note_frame(text: str) -> bytes:
    """Something for `Run.notes`, as one frame."""
    return frames.encode({"kind": "note"}, text.encode(errors="replace"))


def thread_frame(rank: int, identifier: int) -> bytes:
    """Which thread runs a rank, as one frame."""
    return frames.encode({"kind": "thread", "rank": rank, "identifier": identifier})


def read_result(header: dict[str, Any], payload: bytes) -> RankResult:
    """The inverse of `result_frame`; raises `ReportError`."""
    content = _guarded(lambda: wire.loads(payload))
    if not isinstance(content, list) or len(content) != 3:
        raise ReportError("a result of the wrong form")
    if not isinstance(content[0], bytes) or not isinstance(content[1], tuple):
        raise ReportError("a result of the wrong form")
    exit_code = integer(header.get("exit"), "exit") if header.get("exit") is not None else None
    returned = header.get("returned_argument")
    return RankResult(
        rank=integer(header.get("rank"), "rank"),
        value=_guarded(lambda: wire.loads(content[0])),
        arguments=content[1],
        returned_argument=None if returned is None else integer(returned, "returned_argument"),
        error=None if content[2] is None else _error(content[2]),
        exit=exit_code,
    )


def read_trace(payload: bytes, world_size: int) -> Trace:
    """The inverse of `trace_frame`; raises `ReportError` unless every event is one of `world_size` ranks."""
    trace = _guarded(lambda: unpack(payload))
    if not isinstance(trace, Trace) or trace.world_size != world_size:
        raise ReportError("a trace of another number of ranks")
    return trace


def _error(data: Any) -> RankError:
    if not isinstance(data, dict):
        raise ReportError("an error of the wrong form")
    found = data.get("frames"), data.get("locals"), data.get("time")
    if not (isinstance(found[0], tuple) and isinstance(found[1], tuple) and type(found[2]) is float):
        raise ReportError("an error of the wrong form")
    if not math.isfinite(found[2]):
        raise ReportError("an error at a time that is no number")
    return RankError(
        type=_text(data.get("type"))[:200],
        message=_text(data.get("message")),
        frames=tuple(learner_frame(row) for row in found[0][:_MAX_FRAMES]),
        traceback=_text(data.get("traceback")),
        time=found[2],
        consequence=data.get("consequence") is True,
        locals=tuple((_text(name), _text(shown)) for name, shown in _pairs(found[1][:_MAX_LOCALS])),
    )


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process is."""

    threads: tuple[Thread, ...]
    """Those that run code of the learner's, the main one first."""
    under_way: tuple[UnderWay, ...]
    """What it has begun and not ended."""


@dataclasses.dataclass(frozen=True)
class Death:
    """What is known of a process that has ended, beside its exit code."""

    seconds: float
    """Since the run began."""
    last: str
    """What it began last: `all_reduce #2 at Cell In[3], line 5`. May be empty."""
    out_of_memory: bool
    """The kernel has killed a process meanwhile, since memory had run out."""

    def words(self, exit_code: int) -> str:
        """For the learner, of a process that left no exception."""
        parts = []
        if self.out_of_memory:
            parts.append("memory ran out, and the kernel chose this process")
        elif exit_code == -signal.SIGKILL:
            parts.append("this came from outside of the program, as from the kernel when memory runs out")
        elif exit_code > 0:
            parts.append("it left no exception behind, as os._exit does")
        if self.last:
            parts.append(f"the last that it began was {self.last}")
        return "; ".join(parts)


def read_death(header: dict[str, Any]) -> Death:
    """Out of the frame that says that a process has ended; raises `ReportError`."""
    seconds = header.get("seconds", 0.0)
    if type(seconds) is not float or not math.isfinite(seconds):
        raise ReportError("a death at a time that is no number")
    return Death(seconds, _text(header.get("last", ""))[:500], header.get("out_of_memory") is True)


def place_of(threads: Sequence[Thread], under_way: Sequence[UnderWay]) -> bytes:
    """A `Place` as bytes."""
    return json.dumps([list(map(dataclasses.asdict, threads)), list(map(dataclasses.asdict, under_way))]).encode()


def read_place(payload: bytes) -> Place:
    """The inverse of `place_of`; raises `ReportError`."""
    found = _guarded(lambda: json.loads(payload))
    if not isinstance(found, list) or len(found) != 2:
        raise ReportError("a place of the wrong form")
    threads, under_way = (_list(part) for part in found)
    return Place(tuple(map(_thread, threads)), tuple(map(_operation, under_way)))


def _thread(data: Any) -> Thread:
    if not isinstance(data, dict):
        raise ReportError("a thread of the wrong form")
    frames = tuple(learner_frame(row) for row in _list(data.get("frames"))[:_MAX_FRAMES])
    return Thread(integer(data.get("identifier"), "identifier"), frames, data.get("in_torch") is True)


def _operation(data: Any) -> UnderWay:
    if not isinstance(data, dict):
        raise ReportError("an operation of the wrong form")
    seconds = data.get("seconds")
    if type(seconds) is not float or not math.isfinite(seconds):
        raise ReportError("an operation that began at a time that is no number")
    return UnderWay(
        kind=_text(data.get("kind")),
        name=_text(data.get("name")),
        group=_text(data.get("group")),
        ranks=tuple(integer(rank, "rank") for rank in _list(data.get("ranks"))),
        sequence=integer(data.get("sequence"), "sequence"),
        peer=integer(data.get("peer"), "peer"),
        tag=integer(data.get("tag"), "tag"),
        nbytes=integer(data.get("nbytes"), "nbytes"),
        line=_text(data.get("line")),
        seconds=seconds,
        waited_for=data.get("waited_for") is True,
        spins=data.get("spins") is True,
    )


def learner_frame(row: Any) -> tuple[str, int, str, str]:
    """(file, line, function, text), checked; raises `ReportError`."""
    if not isinstance(row, (tuple, list)) or len(row) != 4:
        raise ReportError("a stack frame of the wrong form")
    return _text(row[0]), integer(row[1], "line"), _text(row[2]), _text(row[3])


def _pairs(rows: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    if not all(isinstance(row, tuple) and len(row) == 2 for row in rows):
        raise ReportError("a list of pairs is needed")
    return list(rows)


def _rank(value: Any, world_size: int) -> int:
    if not 0 <= integer(value, "rank") < world_size:
        raise ReportError(f"rank {value} of {world_size}")
    return int(value)


def integer(value: Any, name: str) -> int:
    """`value`, checked; raises `ReportError`."""
    if type(value) is not int or abs(value) >= 1 << 63:
        raise ReportError(f"{name} must be an integer")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ReportError("a list is needed")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ReportError("a text is needed")
    return value[:_MAX_TEXT]


def _guarded(decode: Callable[[], T]) -> T:
    try:
        return decode()
    except (ValueError, RecursionError) as error:  # WireError and JSONDecodeError are ValueErrors
        raise ReportError(str(error)[:500]) from None
