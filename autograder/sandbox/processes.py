"""What the processes of a sandbox use, read from /proc by somebody outside: for machines without control groups."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autograder.sandbox.view import SCRATCH

_INODE_BYTES = 1024
"""What the kernel holds for a file in memory, also for an empty one."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Seen:
    """One look at a sandbox."""

    pids: tuple[int, ...]
    threads: int
    cpu_seconds: float
    """Of these, and of those that they have waited for."""
    resident: dict[int, int]
    """Memory without that of files on disk, by process, in bytes. What is shared is in each: the true sum is less."""
    scratch: int
    """Bytes in files in memory; those that are mapped are in `resident` too."""

    @property
    def at_most(self) -> int:
        """Bytes of all together, if nothing was shared."""
        return sum(self.resident.values()) + self.scratch


def look(first: int) -> Seen:
    """At the sandbox whose first process this is."""
    threads, ticks, resident = 0, 0, {}
    for pid in all_of(first):
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = _table(Path(f"/proc/{pid}/status").read_text().splitlines())
            ticks += sum(map(int, fields[11:15]))
            threads += status.get("Threads", 1)
            resident[pid] = (status.get("RssAnon", 0) + status.get("RssShmem", 0)) << 10
    scratch = sum(in_scratch_folders(resident).values()) + sum(map(without_name, resident))
    return Seen(tuple(resident), threads, ticks / _TICKS, resident, scratch)


def all_of(first: int) -> list[int]:
    """The process and all below it: of a namespace of processes, all that there are."""
    found: list[int] = []
    front = [first]
    while front:
        found += front
        front = [child for pid in front for child in _children(pid)]
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def in_scratch_folders(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that files take in each file system in memory that these processes see: virtual ranks have their own."""
    one_of_each_view: dict[str, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            one_of_each_view.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    found: dict[int, int] = {}
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
                    found[device] = used + (about.f_files - about.f_ffree) * _INODE_BYTES
    return found


def _device(folder: str) -> int | None:
    """The file system of this process's own folder of that name."""
    try:
        return os.stat(folder).st_dev
    except OSError:
        return None


def without_name(pid: int) -> int:
    """Bytes in files that have no name and lie in memory: they are in no folder."""
    total = 0
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{descriptor}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    total += os.stat(path).st_blocks * 512
    return total


def own_memory(pid: int) -> int:
    """Bytes that this process holds without files on disk, of what is shared its part. Takes 10 ms."""
    try:
        table = _table(Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    except OSError:
        return 0
    return (table.get("Pss_Anon", table.get("Pss", 0)) + table.get("Pss_Shmem", 0) + table.get("SwapPss", 0)) << 10


def _table(lines: list[str]) -> dict[str, int]:
    """Names and numbers of a file in /proc, KiB where they are bytes."""
    pairs = ((name, rest.split()) for name, _, rest in (line.partition(":") for line in lines))
    return {name: int(rest[0]) for name, rest in pairs if rest and rest[0].isdigit()}


def sent_over_loopback(pid: int) -> int:
    """Bytes that have gone through the loopback of this process's network; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == "lo":
                return int(counters.split()[8])
    return 0


def network(pid: int) -> str | None:
    """The name of its network namespace; None when it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def born(pid: int) -> int | None:
    """When it was started, on a clock of the kernel's; None when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
