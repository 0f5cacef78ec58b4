"""Processes and their children, from the kernel's own tables. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Make the kernel send `signal_number` to this process when `parent`, which forked it, ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal_number)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Make grandchildren whose parents end children of this process, so that none can escape."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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


def close_all_but(kept: Collection[int | None]) -> None:
    """Close inherited descriptors: a pipe ends only when all of its writing ends are closed."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor that listdir itself used
                continue


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
    """Whether that process has a handler for this signal. False for one that has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = {name: value.split() for line in file for name, _, value in (line.partition(":"),)}
    except OSError:
        return False
    return found["State"][0] not in "ZX" and bool(int(found["SigCgt"][0], 16) >> (number - 1) & 1)


def stop_descendants() -> list[int]:
    """Stop everything below this process with SIGSTOP, except cleanup processes; returns the stopped pids."""
    found = [pid for pid in descendants(os.getpid()) if not _cleans_up(pid)]
    for pid in found:
        _signal(pid, signal.SIGSTOP)
    return found


def killed_for_memory() -> int:
    """Number of processes on this machine that the kernel has killed since boot for lack of memory."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            counts = dict(line.split() for line in file)
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def kill_descendants(patience: float, limit: float = 10.0) -> None:
    """End and reap everything below this process; return when nothing is left, or after `limit` seconds.

    Processes that remove shared memory once its owners are gone get `patience` seconds for that.
    """
    began = time.monotonic()
    while _reap() and (waited := time.monotonic() - began) < limit:
        for pid in descendants(os.getpid()):
            if waited >= patience or not _cleans_up(pid):
                _signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def kill_children_except(spared: set[int]) -> None:
    """Kill the children of this process that are not in `spared`, and all below them, except cleanup processes."""
    below = {pid for child in spared for pid in (child, *descendants(child))}
    for pid in descendants(os.getpid()):
        if pid not in below and not _cleans_up(pid):
            _signal(pid, signal.SIGKILL)


def _cleans_up(pid: int) -> bool:
    """Whether it is multiprocessing's or torch's shared-memory manager, which ends by itself after its last owner."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
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


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
