"""Spares: a supervisor and its processes, forked while the forkserver is idle, for the next run of their shape.

Much of the time until a rank prints its first line is the kernel's: it copies page tables at a fork, and pages at
their first write. Spares have most of that behind them. They are as fresh as others: nothing has run in them yet.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from labkit.clusters.forkserver import child_process, progress
from labkit.clusters.forkserver.child_process import ChildProcess
from labkit.clusters.forkserver.entry import Entry
from labkit.clusters.forkserver.rank_process import Beginning
from labkit.transport import datagrams, pickled

VARIABLE = "LABKIT_SPARES"
"""Environment variable of the forkserver: maximum number of processes that are forked ahead; 0: none."""
MOST = 8
"""The maximum without it: each process holds about 10 MB."""


@dataclass(frozen=True)
class Shape:
    """What spares are for: a run of `count` processes that begin with `entry`."""

    entry: Entry
    count: int


class Spares:
    """The forkserver's side: at most one supervisor waits with its processes."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """Of the supervisor that waits."""
        self.missing: Shape | None = None
        """What to fork for when there is time."""
        self._shape: Shape | None = None
        self._control: socket.socket | None = None

    def expect(self, shape: Shape) -> None:
        """Be ready for runs of this shape, and no other, from now on."""
        if shape != self._shape:
            self.dismiss()
            self.missing = shape if shape.count <= int(os.environ.get(VARIABLE, MOST)) else None

    def have(self, pid: int, control: socket.socket) -> None:
        """Keep those that have just been forked. control: the peer of `taken`'s."""
        self.pid, self._control = pid, control
        self._shape, self.missing = self.missing, None

    def take(self, shape: Shape, connection: socket.socket) -> int | None:
        """Make them serve the run on `connection`. Return their supervisor's pid, or None if none has this shape."""
        pid = self.pid
        return pid if shape == self._shape and self._tell([connection.fileno()]) else None

    def dismiss(self) -> None:
        """Make them end."""
        self._tell([])

    def _tell(self, descriptors: list[int]) -> bool:
        control, self.missing = self._control, self._shape or self.missing
        self.pid = self._shape = self._control = None
        if control is None:
            return False
        try:
            datagrams.send(control, {}, descriptors)
        except OSError:  # their supervisor has been killed
            return False
        finally:
            control.close()
        return True


def taken(control: socket.socket) -> socket.socket:
    """The supervisor's side: wait for the connection of a run. Raises `EOFError` if the spares are dismissed."""
    with control:
        _, descriptors = datagrams.receive(control, 1)
    if not descriptors:
        raise EOFError
    return socket.socket(fileno=descriptors[0])


class Processes:
    """The processes, on their supervisor's side, and what they share."""

    def __init__(self, count: int) -> None:
        self.shared = os.memfd_create("shared")
        self.board = progress.Board(count)
        self._waiting: dict[int, tuple[ChildProcess, int]] = {}
        for index in range(count):
            self._waiting[index] = child_process.fork_ahead(index, self.shared, self.board)

    def begin(self, beginning: Beginning) -> ChildProcess | None:
        """Make a process begin; None if it has been killed."""
        process, pipe = self._waiting.pop(beginning.index)
        try:
            with open(pipe, "wb") as file:
                file.write(pickled.dumps(beginning))
        except BrokenPipeError:
            for descriptor in (*process.streams, process.stacks):
                os.close(descriptor)
            return None
        return process
