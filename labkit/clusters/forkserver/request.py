"""The client's request to a supervisor: one pickle and any number of sockets, over the connection of that run.

This direction is trusted: the lab's own process sends it. Nothing is unpickled in the other direction.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from labkit.clusters.forkserver.entry import Entry
from labkit.clusters.job import Job
from labkit.linux.clock import Clock
from labkit.torch_versions import early_imports
from labkit.transport import descriptors, pickled


class RunSupervisor(Protocol):
    """Supervisor of a run's processes, in a process of its own."""

    def serve(self, sockets: list[int]) -> None:
        """Start the processes, and return when all have ended. sockets: descriptors, one for each process, or none."""


@dataclass(frozen=True)
class Request:
    """One run. `environments[i]` and `ranks[i]` belong to process i."""

    entry: Entry
    job: Job
    options: Mapping[str, Any]
    ranks: Sequence[Sequence[int]]
    environments: Sequence[Mapping[str, str]]
    sockets: int
    """Number of sockets that follow: one for each process, or none."""
    timeout: float | None
    """Seconds until all processes are stopped."""
    environment: Mapping[str, str] | None
    """Base environment, to which `environments` are added; None: the forkserver's own."""
    folder: str | None
    """Working directory; None: the forkserver's own."""
    path: Sequence[str] | None
    """`sys.path`; None: the forkserver's own."""
    commands: bool = False
    """Whether each process can receive data while it runs, from `fresh.commands()`."""
    supervisor: Callable[[socket.socket, Request], RunSupervisor] | None = None
    """Makes the supervisor of the processes from the connection to the client and this request; None: `Supervisor`."""
    clock: Clock = time.monotonic
    """Clock of the supervisor's limits."""

    @property
    def early_imports(self) -> bool:
        """Whether the forkserver should import `early_imports` before it forks."""
        # what live ranks, which take commands, will run is not known yet
        return self.commands or early_imports.likely_used_by(_programs(self.job))

    @property
    def spares(self) -> int:
        """Number of processes forked ahead that can serve it; 0 if none can, because it needs more than they have."""
        plain = self.supervisor is None and not self.commands and not self.sockets
        return len(self.ranks) if plain else 0


def _programs(job: Job) -> list[bytes]:
    """The job's own code, and the shipped modules that it names: a notebook ships the modules of all exercises."""
    programs = [(job.source or "").encode(), job.function or b""]
    others = {name.rpartition("/")[2].encode(): text.encode() for name, text in job.modules.items()}
    for program in programs:  # the list grows meanwhile
        used = [name for name in others if re.search(rb"\b%b\b" % re.escape(name), program)]
        programs += [others.pop(name) for name in used]
    return programs


def send(connection: socket.socket, request: Request, sockets: Sequence[socket.socket | IO[bytes]]) -> None:
    """Send a request and its sockets, or files."""
    pickled.send(connection, request, [s.fileno() for s in sockets])


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    """The inverse of `send`, with sockets as file descriptors. Raises `EOFError` if the client is gone."""
    request: Request = pickled.receive(connection)
    return request, descriptors.receive(connection, request.sockets)
