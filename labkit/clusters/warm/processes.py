"""Processes and their children, by the kernel's own books. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send `signal_number` to this process when `parent`, which forked it, ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal_number)


def outlive_parent() -> None:
    """Take back what `die_with_parent` has arranged."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Grandchildren whose parents end become children of this process, so that none can slip away."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Children of `root`, their children, and so on."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            children[int(fields[1])].append(int(name))
    found: list[int] = []
    front = [root]
    while front:
        front = [child for parent in front for child in children[parent]]
        found += front
    return found


def catches(pid: int, number: int) -> bool:
    """Has that process a handler for this signal? One that has ended has none."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = {name: value.split() for line in file for name, _, value in (line.partition(":"),)}
    except OSError:
        return False
    return found["State"][0] not in "ZX" and bool(int(found["SigCgt"][0], 16) >> (number - 1) & 1)


def stop_descendants() -> list[int]:
    """Have everything below this process stand still, but what cleans up; returns what does."""
    found = [pid for pid in descendants(os.getpid()) if not _cleans_up(pid)]
    for pid in found:
        _signal(pid, signal.SIGSTOP)
    return found


def killed_for_memory() -> int:
    """How many processes of this machine the kernel has killed since it was started, since there was no memory."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            counts = dict(line.split() for line in file)
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def kill_descendants(patience: float, limit: float = 10.0) -> None:
    """End and reap everything below this process; return when nothing is left, or after `limit` seconds.

    Processes that remove shared memory once its owners are gone have `patience` seconds for that.
    """
    began = time.monotonic()
    while _reap() and (waited := time.monotonic() - began) < limit:
        for pid in descendants(os.getpid()):
            if waited >= patience or not _cleans_up(pid):
                _signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def kill_children_except(spared: set[int]) -> None:
    """Kill the children of this process that are not in `spared`, and all below them, but those that clean up."""
    below = {pid for child in spared for pid in (child, *descendants(child))}
    for pid in descendants(os.getpid()):
        if pid not in below and not _cleans_up(pid):
            _signal(pid, signal.SIGKILL)


def _cleans_up(pid: int) -> bool:
    """Is it multiprocessing's or torch's keeper of shared memory, which ends by itself after its last owner?"""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in command or b"torch_shm_manager" in command


def _reap() -> bool:
    """Take in children that have ended; False when there are no children any more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
