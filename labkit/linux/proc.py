"""Figures of processes and threads, from /proc. See proc(5).

path: below /proc, of a process or a thread: a PID, `self`, `self/task/TID`. Each function raises `OSError` if that has
ended, unless it states otherwise.
"""

from __future__ import annotations

import contextlib
import os

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def read(path: str, nbytes: int = -1) -> bytes:
    """The contents of a file. nbytes: a bound, for a file that the kernel returns at once: it is read with one call."""
    with open(f"/proc/{path}", "rb", buffering=0) as file:
        return file.read(nbytes)


def stat(path: str | int) -> list[bytes]:
    """The fields of its `stat` after the command, which may contain blanks: the first is the state, as in `b"R"`."""
    return read(f"{path}/stat", 4096).rpartition(b")")[2].split()


def parent(path: str | int) -> int:
    """PID of its parent."""
    return int(stat(path)[1])


def started(path: str | int) -> int:
    """Time of its start by the kernel's clock, in ticks: with its PID it names a process for good."""
    return int(stat(path)[19])


def table(path: str) -> dict[str, int]:
    """The numbers in a file of lines `NAME: NUMBER`, such as `self/status`; in bytes where the file has kB."""
    numbers = {}
    with open(f"/proc/{path}", encoding="ascii", errors="replace") as file:
        for name, rest in ((name, rest.split()) for name, _, rest in (line.partition(":") for line in file)):
            if rest and rest[0].isdigit():
                numbers[name] = int(rest[0]) << 10 if rest[1:] == ["kB"] else int(rest[0])
    return numbers


def pids() -> list[int]:
    """All processes that this one sees."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def threads(pid: int) -> list[int]:
    """TIDs of its threads."""
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def children(pid: int) -> list[int]:
    """PIDs of its children; empty if it has ended."""
    child_pids: list[int] = []
    with contextlib.suppress(OSError):
        for task in threads(pid):
            with contextlib.suppress(OSError):
                child_pids += map(int, read(f"{pid}/task/{task}/children").split())
    return child_pids


def catches(pid: int, number: int) -> bool:
    """Whether that process has a handler for this signal. False for one that has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            fields = {name: value.split() for line in file for name, _, value in (line.partition(":"),)}
    except OSError:
        return False
    return fields["State"][0] not in "ZX" and bool(int(fields["SigCgt"][0], 16) >> (number - 1) & 1)


def killed_for_memory() -> int:
    """Number of processes on this machine that the kernel has killed since boot for lack of memory."""
    try:
        counts = dict(line.split() for line in read("vmstat").splitlines())
    except OSError:
        return 0
    return int(counts.get(b"oom_kill", 0))
