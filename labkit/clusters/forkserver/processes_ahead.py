"""The processes of a run, forked by a supervisor that is forked ahead; see labkit/forking/spares.py."""

from __future__ import annotations

import os

from labkit.clusters.forkserver import child_process, progress
from labkit.clusters.forkserver.child_process import ChildProcess
from labkit.clusters.forkserver.rank_process import Beginning
from labkit.transport import pickled

VARIABLE = "LABKIT_SPARES"
"""Environment variable: maximum number of processes of a run that are forked ahead; 0: none."""
_MOST = 8
"""The maximum without it: each process holds about 10 MB."""


def most() -> int:
    """Return the maximum number of processes of a run that are forked ahead."""
    return int(os.environ.get(VARIABLE, _MOST))


class ProcessesAhead:
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
