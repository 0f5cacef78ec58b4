"""Where the processes of a run are, when they are asked, and where one was when it crashed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from labkit.clusters.job import Job
from labkit.clusters.warm import processes, progress, reports
from labkit.clusters.warm.forked import Process
from labkit.clusters.warm.stacks import threads

_ANSWER_SECONDS = 1.0
"""For all of them to write down where they are."""


def ask(running: Iterable[Process], tell: Callable[[Process], None]) -> None:
    """Ask every one of these processes where it is, and `tell` of each."""
    asked = list(running)
    # one that has not begun yet, or has just ended, has nothing to say
    able = {p.index for p in asked if processes.catches(p.pid, signal.SIGUSR1)}
    for process in asked:
        os.kill(process.pid, signal.SIGUSR1)
    limit = time.monotonic() + _ANSWER_SECONDS
    for process in asked:
        seen = -1
        while (
            process.index in able
            and time.monotonic() < limit
            and (size := os.fstat(process.stacks).st_size) != seen
            and processes.catches(process.pid, signal.SIGUSR1)
        ):
            seen = size if size > process.told_stacks else -1
            time.sleep(0.02)
        tell(process)


def of(process: Process, board: progress.Board, job: Job) -> bytes:
    """Where it is, or was when it crashed: its threads, from what they wrote, and what it has begun.

    Of what it has written, only what is new; as the payload of a frame.
    """
    written = os.pread(process.stacks, 1 << 20, process.told_stacks)
    process.told_stacks += len(written)
    dump = written.decode(errors="replace")
    # a fork keeps the identifier of its only thread
    found = sorted(threads(dump, job), key=lambda thread: thread.identifier != threading.get_ident())
    if process.status is not None:
        found.sort(key=lambda thread: not thread.current)
    return reports.place_of(found, board.under_way(process.index))
