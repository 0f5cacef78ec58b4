"""One process of a run, on its supervisor's side, and how it is forked."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

from labkit.clusters.forkserver import progress, rank_process, request
from labkit.clusters.forkserver.rank_process import Beginning
from labkit.linux.prctl import die_with_parent


@dataclass
class ChildProcess:
    """One process of the run."""

    index: int
    pid: int
    streams: dict[int, str]
    """Readable streams: file descriptor -> `stdout`, `stderr`, `report`."""
    stacks: int
    """File that receives its stacks, on a crash or on request."""
    commands: int | None
    """Descriptor for data to it."""
    told_stacks: int = 0
    """Number of bytes of its stacks that have been sent on."""
    unsent: bytearray = field(default_factory=bytearray)
    """Data for it that it has not read yet."""
    status: int | None = None
    """Exit code, or minus the signal's number."""


def fork(
    asked: request.Request, index: int, sock: int | None, shared: int, board: progress.Board, began: float
) -> ChildProcess:
    """Fork process `index` of the request.

    sock: a descriptor for its entry function. shared: a file that all processes of the run share. began: start of the
    run on the monotonic clock.
    """
    commands, sending = os.pipe() if asked.commands else (None, None)
    process = _fork(Beginning(asked, index, began), index, shared, board, sock, commands)
    if commands is not None and sending is not None:
        os.close(commands)
        os.set_blocking(sending, False)
    process.commands = sending
    return process


def fork_ahead(index: int, shared: int, board: progress.Board) -> tuple[ChildProcess, int]:
    """Fork process `index` of a run that is not known yet.

    It begins when its pickled `Beginning` has been written to the descriptor that is returned, and that is closed.
    """
    waiting, beginning = os.pipe()
    process = _fork(None, index, shared, board, beginning=waiting)
    os.close(waiting)
    return process, beginning


def _fork(
    known: Beginning | None,
    index: int,
    shared: int,
    board: progress.Board,
    sock: int | None = None,
    commands: int | None = None,
    beginning: int | None = None,
) -> ChildProcess:
    """known: None if it will arrive at `beginning`."""
    pipes = {kind: os.pipe() for kind in ("stdout", "stderr", "report")}
    dump = os.memfd_create("stacks")
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        die_with_parent(supervisor)
        ends = {kind: write for kind, (_, write) in pipes.items()}
        own = rank_process.Descriptors(
            **ends, stacks=dump, shared=shared, socket=sock, commands=commands, beginning=beginning
        )
        board.leave_others(index)
        rank_process.run(known, own, board.slot(index))
    streams = {}
    for kind, (read, write) in pipes.items():
        os.close(write)
        os.set_blocking(read, False)
        streams[read] = kind
    return ChildProcess(index, pid, streams, dump, None)
