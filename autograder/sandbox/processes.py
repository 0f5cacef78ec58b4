"""Resource usage of a sandbox's processes, read from /proc outside it: for machines without control groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autograder.sandbox.view import SCRATCH
from labkit.linux import proc

_INODE_BYTES = 1024
"""Kernel memory for a file in memory, even an empty one."""


@dataclass(frozen=True)
class ResourceSample:
    """One sample of a sandbox."""

    pids: tuple[int, ...]
    threads: int
    cpu_seconds: float
    """CPU time of these processes and of children that they have waited for."""
    resident: dict[int, int]
    """Memory except pages of files on disk, by process, in bytes. Each includes shared memory: the true sum is less."""
    scratch: int
    """Bytes in files in memory; mapped ones are in `resident` too."""

    @property
    def at_most(self) -> int:
        """Bytes of all processes together, if nothing was shared."""
        return sum(self.resident.values()) + self.scratch


def look(pids: Iterable[int]) -> ResourceSample:
    """Sample the sandbox of these processes."""
    threads, ticks, resident = 0, 0, {}
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            fields = proc.stat(pid)
            status = proc.table(f"{pid}/status")
            ticks += sum(map(int, fields[11:15]))
            threads += status.get("Threads", 1)
            resident[pid] = status.get("RssAnon", 0) + status.get("RssShmem", 0)
    scratch = sum(in_scratch_folders(resident).values()) + sum(map(without_name, resident))
    return ResourceSample(tuple(resident), threads, ticks / proc.TICKS_PER_SECOND, resident, scratch)


def all_of(first: int) -> list[int]:
    """Return a process and all its descendants: given a PID namespace's first process, all processes in it."""
    pids: list[int] = []
    front = [first]
    while front:
        pids += front
        front = [child for pid in front for child in proc.children(pid)]
    return pids


def in_scratch_folders(pids: Iterable[int]) -> dict[int, int]:
    """Return bytes of files in each in-memory file system that these processes see: virtual ranks have their own."""
    one_of_each_view: dict[str, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            one_of_each_view.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    totals: dict[int, int] = {}
    for pid in one_of_each_view.values():
        with contextlib.suppress(OSError):
            mounts = [line.partition(" - ") for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
            kinds = {before.split()[4]: after.split()[0] for before, _, after in mounts}
            for folder in SCRATCH:
                path = f"/proc/{pid}/root{folder}"
                # a site's runner may show it this machine's folder, or one on disk
                if kinds.get(folder) == "tmpfs" and (device := os.stat(path).st_dev) != _device(folder):
                    about = os.statvfs(path)
                    used = (about.f_blocks - about.f_bfree) * about.f_frsize
                    totals[device] = used + (about.f_files - about.f_ffree) * _INODE_BYTES
    return totals


def _device(folder: str) -> int | None:
    """Return the device of this process's own folder of that name."""
    try:
        return os.stat(folder).st_dev
    except OSError:
        return None


def without_name(pid: int) -> int:
    """Return the bytes of unlinked files in memory, which are in no folder."""
    total = 0
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{descriptor}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    total += os.stat(path).st_blocks * 512
    return total


def own_memory(pid: int) -> int:
    """Return the process's memory in bytes, without files on disk, with its part of shared memory. Takes 10 ms."""
    try:
        table = proc.table(f"{pid}/smaps_rollup")
    except OSError:
        return 0
    return table.get("Pss_Anon", table.get("Pss", 0)) + table.get("Pss_Shmem", 0) + table.get("SwapPss", 0)


def sent_over_loopback(pid: int) -> int:
    """Return the bytes sent over the loopback of this process's network; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == "lo":
                return int(counters.split()[8])
    return 0


def network(pid: int) -> str | None:
    """Return the name of its network namespace; None when it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def born(pid: int) -> int | None:
    """Return its start time, by the kernel's clock; None when it has ended."""
    try:
        return proc.started(pid)
    except OSError:
        return None
