"""Replays the records of ranks on fake tensors that run ahead of the virtual clock, in the order of that clock.

A run on fake tensors takes as long as torch takes to run the program of each rank, one after the other. Processes that
record what their ranks do share that work (recording_processes.py); the scheduler here takes a small part of the time.
The replay makes the same calls of the scheduler in the same order as ranks that are threads of one process, so the
trace is the same, bit for bit.

A record is right as long as no rank learns something that its record does not know: an error, above all. Then the
replay gives up, and the ranks run again as threads of this process (host.py), where they learn it at the right line.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.virtual.device.accounting import in_order
from labkit.clusters.virtual.device.memory import MemoryAccount
from labkit.clusters.virtual.endpoints import recording
from labkit.clusters.virtual.endpoints.endpoint import Moment
from labkit.clusters.virtual.endpoints.recording import CATEGORY_BITS
from labkit.clusters.virtual.hosts.outlet import Outlet
from labkit.clusters.virtual.hosts.recording_processes import GivenUp, RecordingProcesses
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.clusters.virtual.scheduler.requests import Collective, Receive, Request, Send, StoreCall
from labkit.trace import Trace

_MOST_PARTS = 1024
"""Number of parts of a rank's record, with up to some dozens of waits each, at which the rank is far enough ahead."""
_MOST_POLLS = 1000


class Replay:
    """Replays the records of all ranks on an engine of its own. `account(rank, now)` makes a rank's memory account."""

    def __init__(
        self,
        engine: Engine,
        workers: RecordingProcesses,
        outlet: Outlet,
        account: Callable[[int, Callable[[], float]], MemoryAccount],
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._asking: dict[int, tuple[Request, Callable[[], None]]] = {}
        """Ranks that sleep with an unanswered question: the request that it waits for, and what answers it."""
        self._files: dict[str, int] = {}
        """Worker whose ranks have written each file of fake tensors, by path."""
        self._ranks = [_Rank(self, rank, engine, outlet, account) for rank in range(engine.topology.world_size)]

    def run(self) -> Trace:
        """Return the trace when all ranks have ended. Raises GivenUp."""
        engine, ranks = self._engine, self._ranks
        while (rank := engine.next_rank()) is not None:
            try:
                ranks[rank].turn()
            except Exception as error:  # the ranks learn of it when they run again
                raise GivenUp(str(error)) from error
            if engine.failure or engine.waiting.mismatched:
                raise GivenUp(engine.failure)
        return replace(engine.trace, memory=in_order([rank.account for rank in ranks]))

    def next_record(self, rank: int) -> list[Any]:
        """The next part of that rank's record, waiting for it."""
        while not (parts := self._ranks[rank].parts):
            self._answer_early()
            self._workers.want(rank)
            about, record = self._workers.next_record()
            others = self._ranks[about].parts
            others.append(record)
            if len(others) == _MOST_PARTS:
                self._workers.hold(about, held=True)
        if len(parts) == _MOST_PARTS // 2:
            self._workers.hold(rank, held=False)
        record_now: list[Any] = marshal.loads(parts.popleft())
        return record_now

    def ask(self, rank: int, request: Request, answer: Callable[[], None]) -> None:
        """Register a rank that sleeps with a question; `answer` may be called as soon as the request is done."""
        self._asking[rank] = request, answer

    def answer_now(self, rank: int) -> None:
        """Answer the rank, unless that has been done early."""
        if rank in self._asking:
            self._asking.pop(rank)[1]()

    def _answer_early(self) -> None:
        """Answer questions that are decided, although their time is still to come: the ranks can go on recording."""
        for rank, (request, answer) in [*self._asking.items()]:
            if request.done_at is not None and request.error is None:
                del self._asking[rank]
                answer()

    def answer(self, rank: int, answer: Any) -> None:
        """Answer the question that a rank waits with."""
        self._workers.answer(rank, answer)

    def is_of_other(self, rank: int, path: str, writes: bool) -> bool:
        """Whether ranks of a worker other than this rank's have written that file of fake tensors."""
        worker = self._workers.of(rank)
        if writes:
            self._files.setdefault(path, worker)
        return self._files.get(path, worker) != worker


class _Rank:
    """One rank: the rest of its record, and the meaning of its requests and moments."""

    def __init__(
        self,
        replay: Replay,
        rank: int,
        engine: Engine,
        outlet: Outlet,
        account: Callable[[int, Callable[[], float]], MemoryAccount],
    ) -> None:
        self.parts: deque[bytes] = deque()
        self._polls = 0
        self._replay = replay
        self._rank = rank
        self._engine = engine
        self._clock = 0.0
        """The rank's clock while it computes; the scheduler has it after that."""
        self.account = account(rank, lambda: self._clock)
        self._record: Iterator[Any] = iter(())
        self._requests: dict[int, Request] = {}
        self._posted = 0
        self._moments = [0.0]
        self._resume: Callable[[], bool] | None = None
        """Function with which the rank goes on when it has slept; returns whether it sleeps again."""
        self._actions: dict[int, Callable[..., bool | None]] = {
            recording.SEND: self._send,
            recording.RECEIVE: self._receive,
            recording.COLLECTIVE: self._collective,
            recording.STORE: self._store,
            recording.WAIT: self._wait,
            recording.DONE_AT: lambda number: self._moments.append(self._done_at(number)),
            recording.MOMENT: lambda: self._moments.append(engine.clock[rank]),
            recording.LATER: lambda one, other: self._moments.append(max(self._seconds(one), self._seconds(other))),
            recording.SLEEP_UNTIL: self._sleep_until,
            recording.TICK: self._tick,
            recording.WORK: lambda name, seconds: engine.computing.work(rank, name, seconds),
            recording.JOIN: lambda name, ranks, backend: engine.join_group(rank, name, ranks, backend),
            recording.LEAVE: lambda name: engine.leave_group(rank, name),
            recording.MOVED: self.account.move,
            recording.MEMORY_ENDS: self.account.close,
            recording.OUTPUT: lambda stream, text: outlet.output(rank, stream, text),
            recording.NOTE: outlet.note,
            recording.RESULT: outlet.forward_result,
            recording.END: self._end,
            recording.ASK_ARRIVED: partial(self._wait, asks=True),
            recording.ASK_DONE: self._ask_done,
            recording.ASK_SLEPT: self._sleep,
            recording.ASK_CLOCK: lambda: replay.answer(rank, engine.clock[rank]),
            recording.ASK_SECONDS: lambda moment: replay.answer(rank, self._seconds(moment)),
            recording.ASK_TURN: lambda: replay.answer(rank, None),
            recording.ASK_FILE: lambda path, writes: replay.answer(rank, replay.is_of_other(rank, path, writes)),
        }

    def turn(self) -> None:
        """Replay until the rank sleeps or has ended."""
        engine, rank, account, actions = self._engine, self._rank, self.account, self._actions
        if self._resume is not None:
            resume, self._resume = self._resume, None
            if resume():
                return
        operations, clock = 0, engine.clock[rank]
        while True:
            for done in self._record:
                kind = done.__class__
                if kind is float:
                    clock += done
                    operations += 1
                elif kind is int:
                    self._clock = clock
                    if done > 0:
                        account.grow(done & CATEGORY_BITS, done & ~CATEGORY_BITS)
                    else:
                        account.shrink(-done & CATEGORY_BITS, -done & ~CATEGORY_BITS)
                else:
                    if operations:
                        engine.computing.computed(rank, clock, operations)
                        operations = 0
                    self._clock = clock
                    if actions[done[0]](*done[1:]):
                        return
                    clock = engine.clock[rank]
            self._record = iter(self._replay.next_record(rank))

    # Requests -------------------------------------------------------------------------------------------------------

    def _post(self, at: Moment | None, request: Request) -> None:
        self._posted += 1
        self._requests[self._posted] = request
        self._engine.post(self._rank, request, None if at is None else self._seconds(at))

    def _send(self, at: Moment | None, group: str, name: str, line: str, to: int, tag: int, dtype: str, numel: int,
              payload: bytes | None) -> None:  # fmt: skip
        kind: torch.dtype = getattr(torch, dtype)
        self._post(at, Send(group, name, line, to, tag, kind, numel, numel * kind.itemsize, payload))

    def _receive(self, at: Moment | None, group: str, name: str, line: str, wanted: int | None, tag: int, dtype: str,
                 numel: int) -> None:  # fmt: skip
        self._post(at, Receive(group, name, line, wanted, tag, getattr(torch, dtype), numel))

    def _collective(self, at: Moment | None, group: str, name: str, line: str, tensors: Sequence[tuple[Any, ...]],
                    *options: Any) -> None:  # fmt: skip
        self._post(at, Collective(group, name, line, [recording.unpacked(data) for data in tensors], *options))

    def _store(self, at: Moment | None, group: str, name: str, line: str, store: str, keys: Sequence[str],
               values: Sequence[bytes], number: int, timeout: float) -> None:  # fmt: skip
        self._post(at, StoreCall(group, name, line, store, list(keys), list(values), number, timeout))

    def _wait(self, number: int, move_clock: bool, timeout: float, asks: bool = False) -> bool:
        request = self._requests[number]

        def answer() -> None:
            arrived = request.result
            if arrived.__class__ is list and arrived and isinstance(arrived[0], Tensor):
                arrived = [recording.packed(tensor) for tensor in arrived]
            self._replay.answer(self._rank, (arrived, request.source))

        def arrive() -> bool:
            try:
                arrived = self._engine.waiting.finish(self._rank, request, move_clock)
            except BaseException as error:
                raise GivenUp(str(error)) from None
            if move_clock:
                del self._requests[number]
            if asks:
                self._replay.answer_now(self._rank)
            elif arrived is not None and any(data is not None for data in arrived):
                raise GivenUp("data arrived where none was expected")
            return False

        if asks:
            self._replay.ask(self._rank, request, answer)
        if self._engine.must_sleep(self._rank, request, timeout):
            self._resume = arrive
            return True
        return arrive()

    def _done_at(self, number: int) -> float:
        done_at = self._requests[number].done_at
        assert done_at is not None
        return done_at

    def _ask_done(self, number: int) -> bool:
        request = self._requests[number]

        def look() -> bool:
            if self._steps_aside(look):
                return True
            is_done = self._engine.is_done(self._rank, request)
            self._polls = 0 if is_done else self._polls + 1
            if self._polls > _MOST_POLLS:
                raise GivenUp("a loop that polls, which is faster without another process")
            self._replay.answer(self._rank, is_done)
            return False

        return look()

    # Time -----------------------------------------------------------------------------------------------------------

    def _seconds(self, moment: Moment) -> float:
        return moment if isinstance(moment, float) else self._moments[moment]

    def _sleep_until(self, moment: Moment) -> bool:
        time, now = self._seconds(moment), self._engine.clock[self._rank]
        return time > now and self._sleep(time - now, asks=False)

    def _sleep(self, seconds: float, asks: bool = True) -> bool:
        def wake() -> bool:
            if self._steps_aside(wake):
                return True
            if asks:
                self._replay.answer(self._rank, None)
            return False

        self._engine.computing.sleep(self._rank, seconds)
        return wake()

    def _steps_aside(self, then: Callable[[], bool]) -> bool:
        """Whether the rank sleeps until the others have reached its clock; it goes on with `then`."""
        if not self._engine.is_ahead(self._rank):
            return False
        self._engine.step_aside(self._rank)
        self._resume = then
        return True

    def _tick(self, seconds: float) -> None:
        self._engine.clock[self._rank] += seconds

    def _end(self, failed: bool) -> bool:
        self._engine.end(self._rank, failed)
        return True
