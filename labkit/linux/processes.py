"""The processes below this one: which they are, how they ended, and how to end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from labkit.linux import proc


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap every child that has ended, adopted ones too: its pid and its wait status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there are no children
            return
        if pid == 0:
            return
        yield pid, status


def descendants(root: int) -> list[int]:
    """Children of `root`, their children, and so on."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in proc.pids():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            children[proc.parent(pid)].append(pid)
    pids: list[int] = []
    front = [root]
    while front:
        front = [child for parent in front for child in children[parent]]
        pids += front
    return pids


def stop_descendants() -> list[int]:
    """Stop everything below this process with SIGSTOP, except cleanup processes; returns the stopped pids."""
    stopped = [pid for pid in descendants(os.getpid()) if not _cleans_up(pid)]
    for pid in stopped:
        send_signal(pid, signal.SIGSTOP)
    return stopped


def kill_descendants(patience: float, limit: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
    """End and reap everything below this process; return when nothing is left, or after `limit` seconds of `clock`.

    Processes that remove shared memory once its owners are gone get `patience` seconds for that.
    """
    began = clock()
    while _reap() and (waited := clock() - began) < limit:
        for pid in descendants(os.getpid()):
            if waited >= patience or not _cleans_up(pid):
                send_signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def kill_children_except(spared: set[int]) -> None:
    """Kill the children of this process that are not in `spared`, and all below them, except cleanup processes."""
    below = {pid for child in spared for pid in (child, *descendants(child))}
    for pid in descendants(os.getpid()):
        if pid not in below and not _cleans_up(pid):
            send_signal(pid, signal.SIGKILL)


def send_signal(pid: int, number: int) -> None:
    """Send a signal, unless that process has ended or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _cleans_up(pid: int) -> bool:
    """Whether it is multiprocessing's or torch's shared-memory manager, which ends by itself after its last owner."""
    try:
        command = proc.read(f"{pid}/cmdline")
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in command or b"torch_shm_manager" in command


def _reap() -> bool:
    """Reap children that have ended; False if there are no children any more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
