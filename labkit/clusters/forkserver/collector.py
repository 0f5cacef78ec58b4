"""The client's side of a run: frames in, a `Run` out. No arriving data is trusted."""

from __future__ import annotations

import codecs
import signal
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.clusters.cluster import OnOutput
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.stack_parser import ThreadStack
from labkit.clusters.rank_result import RankError, RankResult
from labkit.clusters.rank_status import Frame, RankStatus
from labkit.clusters.run import Run
from labkit.trace import Trace
from labkit.transport import frames

KEPT_OUTPUT_CHARACTERS = 10_000_000
"""Length of the last part of a rank's output that its result keeps. All output is passed on while the rank runs."""
_MAX_OUTER_BYTES = 16 << 20
_MAX_NOTES = 20
_MAX_TRACES = 1_000
"""Maximum number of traces per process and cell: a process reports one each time that its ranks are started."""
_MAX_THREADS = 10_000
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals at which a process writes its stacks, that of the thread concerned first."""
_NOTICED_SECONDS = 0.25
_MAX_LOSS_CHARACTERS = 1_000


class Collector:
    """Processes the supervisor's frames. `max_bytes` bounds all values and traces of the run together.

    ranks[i]: the global ranks of process i; `world_size` if there are others elsewhere.
    """

    def __init__(
        self,
        ranks: Sequence[Sequence[int]],
        timeout: float | None,
        on_output: OnOutput | None,
        max_bytes: int,
        world_size: int | None = None,
    ) -> None:
        self._ranks = [list(hosted) for hosted in ranks]
        self._world_size = world_size or sum(map(len, self._ranks))
        self._timeout = timeout
        self._on_output = on_output
        self._max_bytes = max_bytes
        self._received_bytes = 0
        self._decoder = frames.Decoder(_MAX_OUTER_BYTES)
        self._reports: list[frames.Decoder | None] = [frames.Decoder(max_bytes) for _ in self._ranks]
        """None once a process has sent something malformed: the rest of its reports is not read."""
        self._text: dict[tuple[int, str], codecs.IncrementalDecoder] = {}
        self._output = {rank: OutputTail() for hosted in self._ranks for rank in hosted}
        self._results: dict[int, RankResult] = {}
        self._over: set[int] = set()
        """Ranks that have reported their result, or whose process has ended."""
        self._malformed: dict[int, str] = {}
        self._traces: list[Trace] = []
        self._reported_traces = Counter[int]()
        self._notes: dict[str, None] = {}
        self._threads: dict[tuple[int, int], int] = {}
        """(process, thread) -> rank."""
        self._places: dict[int, reports.ProcessLocation] = {}
        """Place of each process when last asked, or when it crashed."""
        self._exits: dict[int, int | None] = {}
        self._deaths: dict[int, reports.DeathReport] = {}
        self._losses: dict[int, str] = {}
        self._reason = ""
        self.started = False
        self.began = 0.0
        """Time of 0 on the ranks' clock, by the wall clock of their machine."""
        self.ended = False
        self.quiet = False
        """Whether the supervisor sees no activity any more; `statuses` then has all ranks' places."""
        self._hang = ""

    def feed(self, data: bytes) -> None:
        """Process the next bytes. Raises `FrameError` or `ReportError` if the supervisor's own frames are malformed."""
        for header, payload in self._decoder.feed(data):
            self._take(header, payload)

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        kind = header.get("kind")
        if kind == "started":
            self.started = True
            began = header.get("time")
            self.began = began if isinstance(began, float) else 0.0
            return
        if kind == "end":
            self._reason, self.ended = str(header.get("stopped"))[:100], True
            return
        if kind in ("quiet", "active"):
            self.quiet = kind == "quiet"
            return
        process = header.get("process")
        if type(process) is not int or not 0 <= process < len(self._ranks):
            raise reports.ReportError("a frame of no process of this run")
        if kind in ("stdout", "stderr"):
            rank = self._ranks[process][0]
            decoder = self._text.setdefault((process, kind), codecs.getincrementaldecoder("utf-8")("replace"))
            self._print(rank, kind, decoder.decode(payload))
        elif kind == "report":
            self._take_report_bytes(process, payload)
        elif kind == "stacks":
            self._places[process] = reports.read_place(payload)
        elif kind == "exit":
            status = header.get("status")
            self._exits[process] = status if type(status) is int and abs(status) < 1 << 16 else None
            self._deaths[process] = reports.read_death(header)
            if isinstance(reason := header.get("lost"), str):
                self._losses[process] = reason[:_MAX_LOSS_CHARACTERS]
            self._over.update(self._ranks[process])

    def _take_report_bytes(self, process: int, data: bytes) -> None:
        decoder = self._reports[process]
        if decoder is None:
            return
        try:
            self._received_bytes += len(data)
            if self._received_bytes > self._max_bytes:
                raise reports.ReportError(f"values and traces of more than {self._max_bytes} bytes came back")
            for header, payload in decoder.feed(data):
                self._take_report(process, header, payload)
        except (frames.FrameError, reports.ReportError) as error:
            self._reports[process] = None
            self._malformed[process] = str(error)

    def _take_report(self, process: int, header: dict[str, Any], payload: bytes) -> None:
        kind = header.get("kind")
        if kind == "trace":
            self._reported_traces[process] += 1
            if self._reported_traces[process] > _MAX_TRACES:
                raise reports.ReportError(f"more than {_MAX_TRACES} traces")
            self._traces.append(reports.read_trace(payload, self._world_size))
            return
        if kind == "note":
            if len(self._notes) < _MAX_NOTES:
                self._notes[payload.decode(errors="replace")[:500]] = None
            return
        rank = header.get("rank")
        if type(rank) is not int or rank not in self._ranks[process]:
            raise reports.ReportError("a report of a rank that the process does not host")
        if kind == "result":
            if rank in self._results:
                return
            self._results[rank] = reports.read_result(header, payload)
            self._over.add(rank)
        elif kind == "output" and header.get("stream") in ("stdout", "stderr"):
            self._print(rank, header["stream"], payload.decode(errors="replace"))
        elif kind == "thread" and type(header.get("identifier")) is int and len(self._threads) < _MAX_THREADS:
            self._threads[process, header["identifier"]] = rank

    def _print(self, rank: int, stream: str, text: str) -> None:
        if not text:
            return
        self._output[rank].add(text)
        if self._on_output is not None:
            self._on_output(rank, stream, text)

    @property
    def how_many_ended(self) -> int:
        """Number of ranks that have ended so far; for live ranks, that have answered."""
        return len(self._over)

    @property
    def failed(self) -> bool:
        """Whether any process has failed so far."""
        return any(status != 0 for status in self._exits.values())

    def start_over(
        self, on_output: OnOutput | None, timeout: float | None = None, world_size: int | None = None
    ) -> None:
        """Begin another cell in the same processes, of a job of `world_size` ranks."""
        self._on_output = on_output
        self._timeout = timeout
        self._world_size = world_size or self._world_size
        self._received_bytes = 0
        self._output = {rank: OutputTail() for rank in self._output}
        self._results.clear()
        self._over.clear()
        self._traces.clear()
        self._reported_traces.clear()
        self._notes.clear()
        self._places.clear()
        self.quiet = False

    @property
    def results(self) -> Mapping[int, RankResult]:
        """Reported results so far."""
        return self._results

    @property
    def malformed(self) -> Mapping[int, str]:
        """Processes whose reports are no longer read, and why."""
        return self._malformed

    @property
    def exits(self) -> Mapping[int, int | None]:
        """Ends of processes: exit code, minus the signal's number, or None if stopped."""
        return self._exits

    @property
    def losses(self) -> Mapping[int, str]:
        """Processes that were lost without ending by themselves, in words: `ended with node2: ...`."""
        return self._losses

    def run(self, wall_seconds: float, stopped: str = "") -> Run:
        """The run as known so far. `stopped` is the client's own reason for stopping it, if any."""
        self._hang = stopped if stopped.startswith("hang") else ""
        if not stopped and self._reason == "timeout":
            stopped = f"timeout after {self._timeout:g} s"
        elif not stopped and self._reason == "terminated":
            stopped = "the process that watches over the ranks was told to end"
        elif not stopped and not self.ended:
            stopped = "the process that watches over the ranks died"
        ranks = [
            self._rank_result(process, rank, wall_seconds)
            for process, hosted in enumerate(self._ranks)
            for rank in hosted
        ]
        return Run(
            ranks=sorted(ranks, key=lambda result: result.rank),
            trace=Trace.merged(self._traces) if self._traces else Trace(self._world_size),
            wall_seconds=wall_seconds,
            stopped=stopped,
            statuses=self.statuses() if stopped else (),
            notes=tuple(self._notes),
        )

    def _rank_result(self, process: int, rank: int, wall_seconds: float) -> RankResult:
        output = self._output[rank].text()
        if rank in self._results:
            result = self._results[rank]
            return RankResult(
                rank, result.value, result.arguments, result.returned_argument, output, result.error, result.exit
            )
        exit_code = self._exits.get(process)
        error = None
        if process in self._malformed:
            error = RankError("MalformedReport", self._malformed[process], time=wall_seconds)
            exit_code = exit_code or 1
        elif exit_code != 0:
            error = self._where_it_was(process, rank, exit_code, wall_seconds)
        return RankResult(rank, output=output, error=error, exit=exit_code)

    def _where_it_was(self, process: int, rank: int, exit_code: int | None, wall_seconds: float) -> RankError | None:
        """Why a process was stopped or crashed, and at which line, if known."""
        stack = self._frames(process, rank)
        if exit_code is not None:
            death = self._deaths[process]
            kind = _signal_name(-exit_code) if exit_code < 0 else "Exit"
            # the others may have noticed it before the supervisor did
            seconds = max(0.0, death.seconds - _NOTICED_SECONDS) if exit_code < 0 else death.seconds
            crashed = self._crashed_rank(process) if -exit_code in _CRASHES else None
            if crashed not in (None, rank):
                message = f"shared a process with rank {crashed}, which crashed"
                return RankError("Stopped", message, stack, time=seconds, consequence=True)
            if stack:
                message = "the process crashed: code below Python failed here"
                if death.last.endswith(f" at {stack[-1][0]}, line {stack[-1][1]}"):
                    message += f"; the last that it began was {death.last}"
                return RankError(kind, message, stack, time=seconds)
            return RankError(kind, death.words(exit_code), time=seconds)
        if self._reason == "timeout":
            return RankError("Timeout", f"still running after {self._timeout:g} s", stack, time=wall_seconds)
        if self._hang:
            return RankError("Hang", self._hang, stack, time=wall_seconds)
        message = "was still running when another rank failed"
        return RankError("Stopped", message, stack, time=wall_seconds, consequence=True) if stack else None

    def _frames(self, process: int, rank: int) -> tuple[Frame, ...]:
        thread = self._thread(process, rank)
        return thread.frames if thread else ()

    def _thread(self, process: int, rank: int) -> ThreadStack | None:
        """The thread that runs `rank`, as last seen."""
        threads = self._places[process].threads if process in self._places else ()
        if len(self._ranks[process]) > 1:
            threads = tuple(t for t in threads if self._threads.get((process, t.identifier)) == rank)
        return threads[0] if threads else None

    def _crashed_rank(self, process: int) -> int | None:
        """The rank whose thread crashed, among those that share a process; None if it was no rank's."""
        stacks = self._places[process].threads if process in self._places else ()
        crashed = next((stack.identifier for stack in stacks if stack.current), None)
        return self._threads.get((process, crashed)) if crashed is not None else None

    def forget_places(self) -> None:
        """Forget all places, before all processes are asked again."""
        self._places.clear()

    @property
    def all_places_known(self) -> bool:
        """Whether every running process has reported its place."""
        return all(process in self._places or process in self._exits for process in range(len(self._ranks)))

    def statuses(self) -> list[RankStatus]:
        """Status of each rank when all were last asked, or that it had ended by then."""
        return [self._status(process, rank) for process, hosted in enumerate(self._ranks) for rank in sorted(hosted)]

    def _status(self, process: int, rank: int) -> RankStatus:
        if rank in self._results:
            return RankStatus(rank, exit=self._results[rank].exit)
        if self._exits.get(process) is not None:
            return RankStatus(rank, exit=self._exits[process])
        thread = self._thread(process, rank)
        known = self._places[process].under_way if len(self._ranks[process]) == 1 and process in self._places else None
        return RankStatus(rank, thread.frames if thread else (), thread is not None and thread.in_torch, known)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class OutputTail:
    """The last part of a rank's output."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._length = 0
        self._dropped = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
        while self._length - len(self._pieces[0]) >= KEPT_OUTPUT_CHARACTERS:
            oldest = self._pieces.popleft()
            self._length -= len(oldest)
            self._dropped += len(oldest)

    def text(self) -> str:
        kept = "".join(self._pieces)
        dropped = self._dropped + max(0, len(kept) - KEPT_OUTPUT_CHARACTERS)
        note = f"[{dropped} earlier characters are not kept]\n" if dropped else ""
        return note + kept[-KEPT_OUTPUT_CHARACTERS:]
