"""A process's reports about its ranks, as frames: results, traces, output. Checked by the client."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from labkit.clusters.forkserver.stack_parser import ThreadStack
from labkit.clusters.rank_result import RankError, RankResult
from labkit.clusters.rank_status import PendingOperation
from labkit.trace import Trace
from labkit.trace.packing import pack, unpack
from labkit.transport import frames, wire

MAX_VALUE_BYTES = 128 << 20
"""Maximum for tensors, arrays and strings in a rank's value: the notebook holds the values of all ranks."""
_MAX_TEXT = 200_000
_MAX_FRAMES = 1_000
_MAX_LOCALS = 8
T = TypeVar("T")


class ReportError(ValueError):
    """A malformed report: from code that wrote into the lab's own channel, or worse."""


def result_frame(result: RankResult) -> bytes:
    """A rank's result as one frame; values that cannot travel are sent as `Opaque`."""
    error = dataclasses.asdict(result.error) if result.error else None
    header = {
        "kind": "result",
        "rank": result.rank,
        "exit": result.exit,
        "returned_argument": result.returned_argument,
    }
    try:
        payload = wire.dumps([wire.dumps(result.value, MAX_VALUE_BYTES), result.arguments, error])
    except Exception as problem:  # a learner's object may do anything when it is inspected
        value = wire.Opaque(type(result.value).__name__, f"{type(problem).__name__}: {problem}"[:500])
        payload = wire.dumps([wire.dumps(value), (), error])
    return frames.encode(header, payload)


def trace_frame(trace: Trace) -> bytes:
    """A trace as one frame."""
    return frames.encode({"kind": "trace"}, pack(trace))


def output_frame(rank: int, stream: str, text: str) -> bytes:
    """Output of a rank, as one frame."""
    return frames.encode({"kind": "output", "rank": rank, "stream": stream}, text.encode(errors="replace"))


def note_frame(text: str) -> bytes:
    """A line for `Run.notes`, as one frame."""
    return frames.encode({"kind": "note"}, text.encode(errors="replace"))


def thread_frame(rank: int, identifier: int) -> bytes:
    """The thread that runs a rank, as one frame."""
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
    """The inverse of `trace_frame`; raises `ReportError` unless every event belongs to one of `world_size` ranks."""
    trace = _guarded(lambda: unpack(payload))
    if not isinstance(trace, Trace) or trace.world_size != world_size:
        raise ReportError("a trace of another number of ranks")
    return trace


def _error(data: Any) -> RankError:
    if not isinstance(data, dict):
        raise ReportError("an error of the wrong form")
    parts = data.get("frames"), data.get("locals"), data.get("time")
    if not (isinstance(parts[0], tuple) and isinstance(parts[1], tuple) and type(parts[2]) is float):
        raise ReportError("an error of the wrong form")
    if not math.isfinite(parts[2]):
        raise ReportError("an error at a time that is no number")
    return RankError(
        type=_text(data.get("type"))[:200],
        message=_text(data.get("message")),
        frames=tuple(learner_frame(row) for row in parts[0][:_MAX_FRAMES]),
        traceback=_text(data.get("traceback")),
        time=parts[2],
        consequence=data.get("consequence") is True,
        locals=tuple((_text(name), _text(shown)) for name, shown in _pairs(parts[1][:_MAX_LOCALS])),
    )


@dataclasses.dataclass(frozen=True)
class ProcessLocation:
    """The place where a process is."""

    threads: tuple[ThreadStack, ...]
    """Threads that run the learner's code, the main one first."""
    under_way: tuple[PendingOperation, ...]
    """Operations begun and not ended."""


@dataclasses.dataclass(frozen=True)
class DeathReport:
    """Details of a process's end, beside its exit code."""

    seconds: float
    """Seconds since the run began."""
    last: str
    """Operation that it began last: `all_reduce #2 at Cell In[3], line 5`. May be empty."""
    out_of_memory: bool
    """Whether the kernel has killed a process meanwhile for lack of memory."""
    notice: str
    """Why the hub has ended processes of this server meanwhile; empty if it has not."""

    def words(self, exit_code: int) -> str:
        """A description for the learner, for a process that left no exception."""
        parts = []
        if self.notice:
            parts.append(self.notice.removesuffix("."))
        elif self.out_of_memory:
            parts.append("memory ran out, and the kernel chose this process")
        elif exit_code == -signal.SIGKILL:
            parts.append("this came from outside of the program, as from the kernel when memory runs out")
        elif exit_code > 0:
            parts.append("it left no exception behind, as os._exit does")
        if self.last:
            parts.append(f"the last that it began was {self.last}")
        return "; ".join(parts)


def read_death(header: dict[str, Any]) -> DeathReport:
    """Read the frame that reports the end of a process; raises `ReportError`."""
    seconds = header.get("seconds", 0.0)
    if type(seconds) is not float or not math.isfinite(seconds):
        raise ReportError("a death at a time that is no number")
    last, notice = (_text(header.get(name, ""))[:500] for name in ("last", "notice"))
    return DeathReport(seconds, last, header.get("out_of_memory") is True, notice)


def place_of(threads: Sequence[ThreadStack], under_way: Sequence[PendingOperation]) -> bytes:
    """A `ProcessLocation` as bytes."""
    return json.dumps([list(map(dataclasses.asdict, threads)), list(map(dataclasses.asdict, under_way))]).encode()


def read_place(payload: bytes) -> ProcessLocation:
    """The inverse of `place_of`; raises `ReportError`."""
    content = _guarded(lambda: json.loads(payload))
    if not isinstance(content, list) or len(content) != 2:
        raise ReportError("a place of the wrong form")
    threads, under_way = (_list(part) for part in content)
    return ProcessLocation(tuple(map(_thread, threads)), tuple(map(_operation, under_way)))


def _thread(data: Any) -> ThreadStack:
    if not isinstance(data, dict):
        raise ReportError("a thread of the wrong form")
    frames = tuple(learner_frame(row) for row in _list(data.get("frames"))[:_MAX_FRAMES])
    identifier, in_torch, current = data.get("identifier"), data.get("in_torch") is True, data.get("current") is True
    return ThreadStack(integer(identifier, "identifier"), frames, in_torch, current)


def _operation(data: Any) -> PendingOperation:
    if not isinstance(data, dict):
        raise ReportError("an operation of the wrong form")
    seconds = data.get("seconds")
    if type(seconds) is not float or not math.isfinite(seconds):
        raise ReportError("an operation that began at a time that is no number")
    return PendingOperation(
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
    """Check that `value` is an integer; raises `ReportError`."""
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
    except (ValueError, RecursionError) as error:  # includes WireError and JSONDecodeError
        raise ReportError(str(error)[:500]) from None
