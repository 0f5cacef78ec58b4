"""A live rank: runs one cell after the other in one `__main__`, in its own process, until the client is gone."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from socket import socket
from types import ModuleType
from typing import Any

import torch.distributed as dist

from labkit import exercises
from labkit.clusters.forkserver.entry import Entry, Reporter
from labkit.clusters.forkserver.rank_process import commands, seconds
from labkit.clusters.job import Job
from labkit.clusters.live.group_repair import RepairableGroups
from labkit.clusters.live.interrupts import Interrupts
from labkit.clusters.live.messages import Answer, Cell, GroupRepair, Message, Report, decode
from labkit.clusters.local.rank import record_groups, shared_store, tell_what_is_left_out
from labkit.clusters.program import outcome, run_cell
from labkit.clusters.rank_result import RankResult
from labkit.linux import proc
from labkit.linux.libc import libc
from labkit.torch_versions.groups import group_count
from labkit.transport import frames

_READ_BYTES = 1 << 20
_MAX_MESSAGE_BYTES = 8 << 30


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket | None) -> None:
    """Process the client's messages as one rank until they end. `options` are those of `local.rank.main`."""
    exercises.install(job.modules)
    _LiveRank(options["first_rank"] + index, options, reporter).serve()


ENTRY = Entry(main)


class _LiveRank:
    def __init__(self, rank: int, options: Mapping[str, Any], reporter: Reporter) -> None:
        self._rank = rank
        self._clock: int = options["first_rank"]
        self._clock_began = time.time() - seconds()
        self._pid = os.getpid()
        self._reporter = reporter
        self._groups = RepairableGroups(shared_store(options), options["world_size"])
        self._recorder = record_groups(rank, options, reporter, True, self._groups.store)
        self._groups.install()
        self._interrupts = Interrupts(self._groups.cut)
        self._main = sys.modules["__main__"] = ModuleType("__main__")

    def serve(self) -> None:
        for message in messages():
            began = seconds()
            doing: Callable[[], RankResult] = functools.partial(self._do, message)
            try:
                with self._interrupts.allowed(anywhere=not isinstance(message, Cell)):
                    result = outcome(self._rank, seconds, doing)
            except KeyboardInterrupt as interrupt:
                # an interrupt just after the end, or before the beginning
                result = outcome(self._rank, seconds, functools.partial(_raise, interrupt))
            if os.getpid() != self._pid:
                # a process that the cell has forked, and that returned here in the same way
                _flush()
                os._exit(result.exit or 0)
            self._answer(message, began, result)

    def _do(self, message: Message) -> RankResult:
        if isinstance(message, Cell):
            return RankResult(self._rank, value=self._run(message))
        if isinstance(message, GroupRepair):
            self._groups.repair(message)
        return RankResult(self._rank)

    def _run(self, cell: Cell) -> Any:
        self._recorder.start_over()
        self._groups.begin(cell)
        prepare(cell, self._main, self._reporter)
        self._recorder.computes()
        try:
            return run_cell(cell.source, cell.filename, self._main, cell.first_line)
        finally:
            self._recorder.rests()

    def _answer(self, message: Message, began: float, result: RankResult) -> None:
        _flush()
        error = result.error
        if error is not None and self._interrupts.came and error.consequence:
            # it broke off a collective, which reports only closed connections
            result = replace(result, error=replace(error, type="KeyboardInterrupt", message="interrupted"))
        if isinstance(message, Cell) and message.trace:
            tell_what_is_left_out(self._recorder, self._reporter)
            self._reporter.trace(self._recorder.trace())
        answer = Answer(
            began=began,
            clock=self._clock,
            clock_began=self._clock_began,
            pid=self._pid,
            groups=self._groups.names(),
            default=default_name(),
            group_count=group_count(),
            pulled=pulled(message, self._main) if isinstance(message, Cell) else {},
            memory=memory() if isinstance(message, Report) else 0,
        )
        self._reporter.result(replace(result, value=answer.with_value(result.value)))


def prepare(cell: Cell, main: ModuleType, reporter: Reporter) -> None:
    """Prepare `main` for a cell: set the pushed values, and reload exercise modules that the learner has edited.

    Functions and classes of such a module that cells hold are replaced by the new ones.
    """
    for module, before in exercises.renew(cell.modules):
        own = {id(value): name for name, value in before.items() if _is_defined_in(value, module)}
        for name, value in list(main.__dict__.items()):
            if id(value) in own and own[id(value)] in module.__dict__:
                main.__dict__[name] = module.__dict__[own[id(value)]]
        short_name = module.__name__.rpartition(".")[2]
        reporter.note(f"{short_name} has changed since the last cell: it was loaded again")
    main.__dict__.update(cell.values)


def pulled(cell: Cell, main: ModuleType) -> dict[str, Any]:
    """The requested values that exist."""
    return {name: main.__dict__[name] for name in cell.wanted if name in main.__dict__}


def messages() -> Iterator[Message]:
    """The client's messages, until it is gone."""
    decoder = frames.Decoder(_MAX_MESSAGE_BYTES)
    while data := os.read(commands(), _READ_BYTES):
        for header, payload in decoder.feed(data):
            yield decode(header, payload)


def default_name() -> str:
    """Name of this rank's default process group; empty if there is none."""
    return dist.group.WORLD.group_name if dist.group.WORLD is not None else ""


def _is_defined_in(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _raise(error: BaseException) -> RankResult:
    raise error


def _flush() -> None:
    """Write out all output before the answer, including that of C code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the learner may have replaced or closed it
            continue
    libc.fflush(None)


def memory() -> int:
    """Bytes that this process holds alone, and its share of the memory that it shares with others."""
    return proc.table("self/smaps_rollup").get("Pss", 0)
