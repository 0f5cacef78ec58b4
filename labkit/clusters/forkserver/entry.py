"""Where a process of a run begins, and how it reports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from labkit.clusters.job import Job
from labkit.clusters.rank_result import RankResult
from labkit.trace import Trace


class Reporter(Protocol):
    """Reports a process's results to the client. May be called from any thread."""

    def output(self, rank: int, stream: str, text: str) -> None:
        """Report output of `rank`; `stream` is `stdout` or `stderr`. Not needed if fd 1 and 2 are used."""

    def result(self, result: RankResult) -> None:
        """Report how a rank ended; the first report of a rank counts."""

    def trace(self, trace: Trace) -> None:
        """Report a trace of any of this process's ranks."""

    def note(self, text: str) -> None:
        """Add a line about the run to `Run.notes`, for the learner. The same line of many ranks appears once."""

    def hosts(self, rank: int) -> None:
        """Called in the thread that runs `rank`, so that the client can report its line if it hangs."""


@dataclass(frozen=True)
class Entry:
    """Where a process of a run begins. A constant of the module of its functions, which are pickled by name."""

    main: Callable[[Job, int, Mapping[str, Any], Reporter, socket.socket | None], None]
    """Called with the job, the process's number in the request, its options, its reporter and its socket, if any."""
    load: Callable[[], object] | None = None
    """Imports what `main` needs, once for all forks. None: the module of `main` has imported it."""
    prepare: Callable[[], None] | None = None
    """Called once, in a forkserver from which only processes of this entry are forked. They also seed random generators
    themselves. None: nothing is to be prepared."""
