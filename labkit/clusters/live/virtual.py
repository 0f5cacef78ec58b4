"""Live virtual ranks: threads of one process that rest between cells, while their virtual clocks stand still.

A cell begins on all of its ranks at the latest time of any rank's clock, as on real ranks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from socket import socket
from types import FrameType, ModuleType
from typing import Any, NoReturn

import torch.distributed as dist

from labkit import exercises
from labkit.clusters.forkserver.entry import Reporter
from labkit.clusters.job import Job
from labkit.clusters.live.default_group import DefaultGroup, keep_default_groups
from labkit.clusters.live.messages import Answer, Cell, GroupRepair, Report
from labkit.clusters.live.rank import default_name, memory, messages, prepare, pulled
from labkit.clusters.program import describe, is_learners, outcome, run_cell
from labkit.clusters.rank_result import RankResult
from labkit.clusters.run import ending
from labkit.clusters.virtual.endpoints.threads import ThreadEndpoint, ThreadRanks
from labkit.clusters.virtual.hosts import host
from labkit.clusters.virtual.isolation import current, modules, process_state
from labkit.clusters.virtual.torch_backend import store
from labkit.torch_versions.groups import count_inits_from, group_count, groups_of_this_rank, inits_of_this_rank
from labkit.torch_versions.tensors import all_ddp, ddp_afresh
from labkit.trace import Trace

_RETRY_SECONDS = 0.01
_VIRTUAL = f"{Path(host.__file__).parents[1]}/"


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket | None) -> None:
    """Process the client's messages, on all ranks of `options["topology"]`, until they end."""
    _LiveHost(job, options, reporter).serve()


@dataclass
class _Rank:
    """One rank, during its whole life."""

    endpoint: ThreadEndpoint
    default: DefaultGroup
    modules: dict[str, str]
    """Exercise modules that it has loaded."""
    thread: int = field(default_factory=threading.get_ident)
    main: ModuleType | None = None


class _LiveHost:
    def __init__(self, job: Job, options: Mapping[str, Any], reporter: Reporter) -> None:
        self._job = job
        self._reporter = reporter
        self._ranks: dict[int, _Rank] = {}
        self._dead: dict[int, str] = {}
        self._in_cell: set[int] = set()
        self._modules = dict(job.modules)
        self._task: Callable[[_Rank], RankResult] = _do_nothing
        self._results: dict[int, RankResult] = {}
        world = range(options["topology"]["nnodes"] * options["topology"]["nproc_per_node"])
        self._answers = dict.fromkeys(world, _NO_ANSWER)
        self._inits = 0
        self._host = host.prepare(job, options, reporter, self._leave)
        self._threads = ThreadRanks(self._host.engine, self._program, process_state.resume)
        keep_default_groups(lambda: self._ranks[current.endpoint().rank].default)

    def serve(self) -> None:
        self._threads.run()  # returns when all rest for the first time
        signal.signal(signal.SIGINT, self._interrupt)
        world = range(self._host.topology.world_size)
        for message in messages():
            if isinstance(message, Cell):
                self._run(message)
            elif isinstance(message, GroupRepair):
                self._host.engine.forget()
                store.count_attempts_alike()
                ddp_modules = all_ddp()
                self._go_on(world, _leave_groups if message.without_default else partial(_forget_works, ddp_modules))
                self._tell(world)
            else:
                assert isinstance(message, Report)
                self._tell(world, memory() // len(world))

    def _program(self, endpoint: ThreadEndpoint) -> bool:
        """A rank's program, in its thread: all of its cells."""
        number = endpoint.rank
        self._reporter.hosts(number)
        with self._host.being(endpoint, self._job.environment) as identity:
            exercises.install(self._job.modules)
            world_size = self._host.topology.world_size
            rank = _Rank(endpoint, DefaultGroup(world_size), dict(self._job.modules))
            rank.main = modules.new_main(identity)
            self._ranks[number] = rank
            failed = False
            while True:
                if endpoint.threads is not None:
                    endpoint.threads.pause(failed)
                self._threads.rest(number, failed)
                result = self._outcome(rank)
                if current.is_forked():
                    os._exit(result.exit or 0)
                if result.exit is not None and result.exit < 0:  # an injected fault, or a signal
                    self._dead[number] = ending(result.exit)
                self._results[number] = result
                self._answers[number] = replace(self._status(), pulled=self._answers[number].pulled)
                self._inits = max(self._inits, inits_of_this_rank())
                failed = result.error is not None or result.exit != 0

    def _outcome(self, rank: _Rank) -> RankResult:
        """The result of the task on a rank, even if an interrupt comes while it is being reported."""
        number, endpoint = rank.endpoint.rank, rank.endpoint
        self._in_cell.add(number)
        try:
            return outcome(number, lambda: endpoint.now, partial(self._task, rank))
        except KeyboardInterrupt as late:
            return RankResult(number, error=describe(late, endpoint.now), exit=1)
        finally:
            self._in_cell.discard(number)

    def _run(self, cell: Cell) -> None:
        """Run one cell on its ranks and answer with the results."""
        engine = self._host.engine
        self._modules.update(cell.modules)
        began = max(engine.clock)
        if cell.trace:
            engine.log.start()
        engine.reach.apart = set(self._answers) - set(cell.ranks)
        self._answers.update({rank: replace(_NO_ANSWER, began=began) for rank in cell.ranks})
        self._go_on(cell.ranks, partial(self._run_on_rank, cell, self._inits))
        if cell.trace:
            self._reporter.trace(self._trace_since(began))
        self._tell(cell.ranks)

    def _run_on_rank(self, cell: Cell, inits: int, rank: _Rank) -> RankResult:
        """`inits`: maximum number of calls of `init_process_group` by any rank before this cell."""
        assert rank.main is not None
        number = rank.endpoint.rank
        count_inits_from(inits)
        rank.default.begin(cell)
        changed = {name: source for name, source in self._modules.items() if rank.modules.get(name) != source}
        rank.modules.update(changed)
        prepare(replace(cell, modules=changed), rank.main, self._reporter)
        value = run_cell(cell.source, cell.filename, rank.main, cell.first_line)
        self._answers[number] = replace(self._answers[number], pulled=pulled(cell, rank.main))
        return RankResult(number, value=value)

    def _go_on(self, ranks: Sequence[int], task: Callable[[_Rank], RankResult]) -> None:
        """Run `task` on these ranks, until all rest again."""
        self._task = task
        self._results = {}
        self._threads.go_on([rank for rank in ranks if rank not in self._dead])
        for rank in self._ranks.values():
            # cancels an interrupt that came too late for the cell
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(rank.thread), None)

    def _tell(self, ranks: Sequence[int], held: int = 0) -> None:
        for rank in ranks:
            answer = replace(self._answers[rank], pid=os.getpid(), memory=held, ended=self._dead.get(rank, ""))
            result = self._results.get(rank, RankResult(rank))
            self._reporter.result(replace(result, value=answer.with_value(result.value)))

    def _status(self) -> Answer:
        """Status of the running rank."""
        groups = {str(g.group_name): tuple(g.ranks) for g in groups_of_this_rank()}  # type: ignore[attr-defined]
        began = self._answers[current.endpoint().rank].began
        return replace(_NO_ANSWER, began=began, groups=groups, default=default_name(), group_count=group_count())

    def _trace_since(self, began: float) -> Trace:
        trace = self._host.trace()
        return replace(trace, memory=tuple(sample for sample in trace.memory if sample.time >= began))

    def _leave(self, code: int) -> NoReturn:
        """End the running rank for good, as `os._exit` ends a process."""
        endpoint: ThreadEndpoint = current.endpoint()
        number = endpoint.rank
        self._dead[number] = ending(code)
        self._results[number] = RankResult(number, exit=code)
        endpoint.leave(failed=code != 0)

    def _interrupt(self, *_: object) -> None:
        """Handle SIGINT, in the thread that waits for the ranks: `KeyboardInterrupt` in each rank that would run on.

        It is raised either at the rank's next request to the scheduler, or in the learner's own code, or where the rank
        waits for another one of its threads.
        """
        self._host.engine.faults.interrupt(self._in_cell)
        while not self._threads.all_rest:
            frames = sys._current_frames()
            for rank in self._ranks.values():
                if _is_in_learners_code(frames.get(rank.thread)):
                    error = ctypes.py_object(KeyboardInterrupt)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(rank.thread), error)
                elif rank.endpoint.threads is not None and rank.endpoint.rank in self._in_cell:
                    rank.endpoint.threads.interrupt()
            time.sleep(_RETRY_SECONDS)
        self._host.engine.faults.end_interrupt()


_NO_ANSWER = Answer(began=0.0, pid=0, groups={}, default="", group_count=0)


def _do_nothing(rank: _Rank) -> RankResult:
    return RankResult(rank.endpoint.rank)


def _forget_works(ddp_modules: list[Any], rank: _Rank) -> RankResult:
    """Forget operations under way, also for the tensors that they would fill."""
    rank.endpoint.race_detector.pending.clear()
    ddp_afresh(ddp_modules, groups_of_this_rank())
    return RankResult(rank.endpoint.rank)


def _leave_groups(rank: _Rank) -> RankResult:
    if dist.is_initialized():
        dist.destroy_process_group()
    return _forget_works([], rank)


def _is_in_learners_code(frame: FrameType | None) -> bool:
    """Whether this thread runs the learner's code, and not the scheduler's on its behalf."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_VIRTUAL):
            return False
        if is_learners(file):
            return True
        frame = frame.f_back
    return False
