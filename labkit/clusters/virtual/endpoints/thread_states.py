"""Activity of this process's threads, as the kernel sees it: computing, waiting for a lock, or for something else."""

from __future__ import annotations

import os
import platform
import threading
from contextlib import suppress

from labkit.linux import proc

RUNS, WAITS, RESTLESS = "runs", "waits", "restless"
"""It has run since the last look; it waits for a lock, without a time limit; it sleeps, and may go on by itself."""
_FUTEX = {"x86_64": b"202", "aarch64": b"98"}.get(platform.machine(), b"")


class ThreadStates:
    """The states of threads since the last look at each."""

    def __init__(self) -> None:
        self._ran: dict[int, bytes] = {}
        """CPU time at the last look, by native identifier."""

    def of(self, number: int) -> str:
        """The state of the thread with this native identifier: `RUNS`, `WAITS` or `RESTLESS`."""
        task = f"self/task/{number}"
        try:
            ran = _ran(task)
            sleeps = proc.stat(task)[0] in (b"S", b"I")
        except OSError:  # it has ended
            return WAITS
        before, self._ran[number] = self._ran.get(number), ran
        if not sleeps or before != ran:
            return RUNS
        with suppress(OSError):
            call = proc.read(f"{task}/syscall").split()
            if call[0] == _FUTEX and int(call[4], 16) == 0:
                # each of these looks lets other threads run: it may wait for the very lock that the caller holds
                return WAITS if _ran(task) == before else RUNS
        return RESTLESS

    def seconds(self, number: int) -> float:
        """CPU time of the thread at the last look."""
        return int(self._ran.get(number, b"0")) / 1e9


def others_can_run(number: int) -> bool:
    """Whether another thread of this process, which is not the caller's, computes, or waits for a CPU or a disk."""
    for other in proc.threads(os.getpid()):
        if other not in (number, threading.get_native_id()):
            with suppress(OSError):  # it has ended
                if proc.stat(f"self/task/{other}")[0] in (b"R", b"D"):
                    return True
    return False


def _ran(task: str) -> bytes:
    """The thread's CPU time so far. Raises `OSError` if it has ended."""
    return proc.read(f"{task}/schedstat").split()[0]
