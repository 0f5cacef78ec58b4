"""The memory of a learner's server, with its kernels, ranks and files in memory: beyond the limit the largest one ends.

Where the hub can make control groups, the kernel enforces the limit at every moment, and chooses which process ends.
Elsewhere this looks at what all processes hold, and one that grows fast may be beyond the limit until the next look.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from autograder.classroom.limits.sandboxes import RunningServer, holds_memory, name_of
from autograder.sandbox import processes
from autograder.sandbox.cgroups import Cgroup, Parents
from labkit.linux.processes import send_signal

_GIB = 1 << 30
_PREFERENCE = 500
"""Thousandths of the limit that the kernel adds to a process's memory in its choice; see proc(5), oom_score_adj."""
SCRATCH_BYTES = 1 << 30
"""Size of /tmp and of /dev/shm in a sandbox: at most so much, and a quarter of the memory each."""


def scratch_bytes(limit_bytes: int) -> int:
    """Return the size of each folder in memory, for servers with this limit; 0: no limit."""
    return min(SCRATCH_BYTES, limit_bytes // 4) if limit_bytes else SCRATCH_BYTES


class MemoryLimit:
    """The limit of each server's memory."""

    def __init__(self, limit_bytes: int, parents: Parents | None) -> None:
        """parents: where the hub makes servers' control groups; None where it cannot."""
        self._limit = limit_bytes
        self._parents = parents
        self._kills: dict[RunningServer, int] = {}

    def look(self, server: RunningServer, notify: Callable[[str], None]) -> None:
        """End the largest process of a server beyond the limit. notify: called first, with the text for the learner."""
        self._count_kills(server, notify)
        for pid in server.started_by_learner():
            _prefer(pid)
            if _hides(pid):
                notify(f"A process was ended, since it hides how much memory it uses: {name_of(pid)}.")
                send_signal(pid, signal.SIGKILL)
        seen = processes.look(server.pids())
        if seen.at_most <= self._limit:
            return
        held = {pid: processes.own_memory(pid) for pid in seen.pids}
        total = sum(held.values()) + seen.scratch
        if total <= self._limit:
            return
        about = f"Your server may use {self._limit / _GIB:.3g} GiB of memory and held {total / _GIB:.1f} GiB. "
        if seen.scratch > self._limit:  # ending processes would not free it
            notify(f"{about}Most of it were files in /tmp and /dev/shm, so it was stopped: start it again.")
            send_signal(server.first, signal.SIGKILL)
            return
        kept = server.kept()
        candidates = [pid for pid in held if pid not in kept]
        if not candidates:
            notify(f"{about}No kernel was running, so it was stopped: start it again.")
            send_signal(server.first, signal.SIGKILL)
            return
        largest = max(candidates, key=lambda pid: held[pid])
        notify(
            f"{about}The largest process was ended: {name_of(largest)}, with {held[largest] / _GIB:.1f} GiB. "
            "Use fewer or smaller ranks and tensors, or shut down kernels that you do not need."
        )
        send_signal(largest, signal.SIGKILL)

    def forget(self, ended: RunningServer) -> None:
        """Forget a server that has ended."""
        self._kills.pop(ended, None)

    def _count_kills(self, server: RunningServer, notify: Callable[[str], None]) -> None:
        group = None if self._parents is None else Cgroup.of(server.first, self._parents)
        if group is None:
            return
        kills = group.memory_kills()
        if kills > self._kills.get(server, 0):
            notify(
                f"Your server may use {self._limit / _GIB:.3g} GiB of memory and needed more. The kernel has ended the "
                "largest process. Use fewer or smaller ranks and tensors, or shut down kernels that you do not need."
            )
        self._kills[server] = kills


def _prefer(pid: int) -> None:
    """Let the kernel choose this process, rather than the server or another user's, when memory runs out."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(_PREFERENCE))


def _hides(pid: int) -> bool:
    """Return whether a process hides which files in memory it holds open, as ssh-agent does."""
    try:
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return holds_memory(pid)  # one that is about to end cannot be read either
    except OSError:  # it has ended meanwhile
        return False
    return False
