"""Resources that each learner's server uses on this machine, from the processes that the hub has started."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from autograder.classroom.folders import Folders
from autograder.classroom.limits.running import servers


@dataclass(frozen=True)
class Server:
    """One running server with its kernels and ranks."""

    learner: str
    since: str
    """Start time: UTC, ISO 8601."""
    processes: int
    megabytes: float
    """Proportional set size of all processes: shared memory counts once."""


def running(folders: Folders, hub: int) -> list[Server]:
    """Return the servers that the hub with this PID runs, the one with the most memory first."""
    result = []
    for server in servers(folders, hub):
        try:
            since = datetime.fromtimestamp(psutil.Process(server.first).create_time(), UTC)
        except psutil.NoSuchProcess:  # it has just ended
            continue
        pids = server.pids()
        result.append(
            Server(server.learner, since.isoformat(timespec="seconds"), len(pids), sum(map(_bytes, pids)) / 1e6)
        )
    return sorted(result, key=lambda each: -each.megabytes)


def _bytes(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
