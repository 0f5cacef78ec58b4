"""What each learner's server uses on this machine, from the processes that the hub has started."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from autograder.classroom.limits.sandboxes import learner_of


@dataclass(frozen=True)
class Server:
    """One running server with its kernels and ranks."""

    learner: str
    since: str
    """UTC, ISO 8601."""
    processes: int
    megabytes: float
    """Proportional set size of all processes: shared memory counts once."""


def running(hub: psutil.Process, homes: Path) -> list[Server]:
    """Return the servers that this hub runs, the one with the most memory first. homes: folder of learners' homes."""
    found = []
    for process in hub.children():
        try:
            learner = learner_of(process.cmdline(), homes)
            if learner:
                inside = [process, *process.children(recursive=True)]
                since = datetime.fromtimestamp(process.create_time(), UTC).isoformat(timespec="seconds")
                found.append(Server(learner, since, len(inside), sum(map(_bytes, inside)) / 1e6))
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return sorted(found, key=lambda one: -one.megabytes)


def _bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
