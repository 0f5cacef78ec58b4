"""Stack dumps: the places of a run's processes when they are asked, or of one that crashed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from labkit.clusters.forkserver import progress, reports
from labkit.clusters.forkserver.child_process import ChildProcess
from labkit.clusters.forkserver.stack_parser import threads
from labkit.clusters.job import Job
from labkit.linux import proc
from labkit.linux.clock import Clock

_ANSWER_SECONDS = 1.0
"""Time for all processes to write their stacks."""


def request(running: Iterable[ChildProcess], tell: Callable[[ChildProcess], None], clock: Clock) -> None:
    """Request the stacks of every process in `running`, and call `tell` for each."""
    processes = list(running)
    # a process that has not set its handler yet, or has just ended, has nothing to report
    able = {p.index for p in processes if proc.catches(p.pid, signal.SIGUSR1)}
    for process in processes:
        os.kill(process.pid, signal.SIGUSR1)
    limit = clock() + _ANSWER_SECONDS
    for process in processes:
        seen = -1
        while (
            process.index in able
            and clock() < limit
            and (size := os.fstat(process.stacks).st_size) != seen
            and proc.catches(process.pid, signal.SIGUSR1)
        ):
            seen = size if size > process.told_stacks else -1
            time.sleep(0.02)
        tell(process)


def location(process: ChildProcess, board: progress.Board, job: Job) -> bytes:
    """The place of a process, now or at its crash: its threads, from its stacks, and its operations.

    Only from new output; as the payload of a frame.
    """
    written = os.pread(process.stacks, 1 << 20, process.told_stacks)
    process.told_stacks += len(written)
    dump = written.decode(errors="replace")
    # a fork keeps the identifier of its only thread
    stacks = sorted(threads(dump, job), key=lambda thread: thread.identifier != threading.get_ident())
    if process.status is not None:
        stacks.sort(key=lambda thread: not thread.current)
    return reports.place_of(stacks, board.under_way(process.index))
