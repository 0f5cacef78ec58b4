"""One process of a run, as its supervisor has it, and how it is forked."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

from labkit.clusters.warm import fresh, processes, progress, request


@dataclass
class Process:
    """One process of the run."""

    index: int
    pid: int
    streams: dict[int, str]
    """What may be read from it: file descriptor -> `stdout`, `stderr`, `report`."""
    stacks: int
    """The file that its stacks are written into, when it crashes or is asked."""
    commands: int | None
    """Where it can be sent something."""
    told_stacks: int = 0
    """So many bytes of its stacks have been sent on."""
    unsent: bytearray = field(default_factory=bytearray)
    """What it has not yet read of that."""
    status: int | None = None
    """Exit code, or minus the signal's number."""


def fork(
    asked: request.Request, index: int, sock: int | None, shared: int, board: progress.Board, began: float
) -> Process:
    """Fork process `index` for what is asked.

    sock: a descriptor for its entry function. shared: a file that all processes of the run have. began: when the run
    did, on the monotonic clock.
    """
    pipes = {kind: os.pipe() for kind in ("stdout", "stderr", "report")}
    dump = os.memfd_create("stacks")
    commands, sending = os.pipe() if asked.commands else (None, None)
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        processes.die_with_parent(supervisor)
        ends = {kind: write for kind, (_, write) in pipes.items()}
        kept = fresh.Descriptors(**ends, stacks=dump, shared=shared, socket=sock, commands=commands)
        board.leave_others(index)
        fresh.run(asked, index, kept, began, board.slot(index))
    streams = {}
    for kind, (read, write) in pipes.items():
        os.close(write)
        os.set_blocking(read, False)
        streams[read] = kind
    if commands is not None and sending is not None:
        os.close(commands)
        os.set_blocking(sending, False)
    return Process(index, pid, streams, dump, sending)
