"""What this pytest process has on the machine: processes, listening ports, temporary files, and shared memory.

Others run beside it, pytest processes of the same run too. Its processes are those below it, and those that have its
`MARK` in their environment, wherever they are by now. Its temporary files are in a folder of its own. Shared memory
belongs to whoever holds it.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from labkit.linux import proc

MARK = f"LAB_TESTS_{secrets.token_hex(8)}"
"""Environment variable of all processes that are started from here."""
SHARED_MEMORY = "/dev/shm"
Socket = tuple[int, str]
"""PID and inode."""
STAY = ("pytest-of-", "torchelastic_", "node-compile-cache", "uv-")
"""Beginnings of the names of temporary files that pytest, torchrun, Node and uv keep."""
_LISTENING = "0A"
_CLEAN_UP_AT_THE_END = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Commands of processes that last as long as the one that uses them."""


@dataclass(frozen=True)
class Process:
    """A process that has not ended. started: in the kernel's clock ticks; with `pid` it identifies the process."""

    pid: int
    started: int
    parent: int
    session: int

    @property
    def activity(self) -> tuple[str, int] | None:
        """Its state, and the CPU time that it has used, in ticks; None if it has ended."""
        with suppress(OSError):
            fields = proc.stat(self.pid)
            return fields[0].decode(), int(fields[11]) + int(fields[12])
        return None

    @property
    def command(self) -> str:
        """Its command line; empty if it has ended."""
        with suppress(OSError):
            return proc.read(f"{self.pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        return ""


def ticks() -> int:
    """Now, by the clock of `Process.started`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * proc.TICKS_PER_SECOND)


_BEGAN = ticks()


def everything() -> dict[int, Process]:
    """Return all processes of the machine that have not ended, by PID."""
    found = {}
    for pid in proc.pids():
        with suppress(OSError):  # it has ended meanwhile
            fields = proc.stat(pid)
            if fields[0] not in b"ZX":
                found[pid] = Process(pid, int(fields[19]), int(fields[1]), int(fields[3]))
    return found


def own(among: Mapping[int, Process]) -> dict[int, Process]:
    """Return this process's own, without the forkservers that modules share."""
    descendants, kept = below([os.getpid()], among), forkservers(among)
    return {
        pid: process
        for pid, process in among.items()
        if pid not in kept
        and (pid in descendants or (process.started >= _BEGAN and _is_marked(pid)))
        and not _cleans_up(process)
    }


def below(roots: Iterable[int], among: Mapping[int, Process]) -> set[int]:
    """PIDs of the descendants of `roots` among those processes."""
    children = defaultdict(list)
    for process in among.values():
        children[process.parent].append(process.pid)
    found: set[int] = set()
    front = list(roots)
    while front:
        front = [child for parent in front for child in children[parent]]
        found |= set(front)
    return found


def _is_marked(pid: int) -> bool:
    try:
        return f"{MARK}=".encode() in proc.read(f"{pid}/environ")
    except OSError:  # another user's, or it has ended
        return False


def _cleans_up(process: Process) -> bool:
    if process.parent != os.getpid():
        return False
    command = process.command.encode()
    return any(part in command for part in _CLEAN_UP_AT_THE_END)


def forkservers(among: Mapping[int, Process]) -> set[int]:
    """PIDs of the forkservers that this process's modules share, with the ones that these have prepared.

    A fresh one costs 1.5 s of CPU, and nothing has run in it. The processes of runs and sandboxes are in sessions of
    their own: what is in the session of a forkserver is one, too.
    """
    sessions: set[int] = set()
    client = sys.modules.get("labkit.clusters.forkserver.client")
    if client is not None and client._shared is not None and client._shared.server.process is not None:
        sessions.add(client._shared.server.process.pid)
    begun = sys.modules.get("labkit.clusters.forkserver.starting")
    if begun is not None and begun._begun is not None:  # the next run takes it over
        sessions.add(begun._begun.process.pid)
    sandboxes = sys.modules.get("autograder.sandbox.forkserver")
    for forkserver in sandboxes._forkservers.values() if sandboxes is not None else ():
        if forkserver.server.process is not None:
            # of bubblewrap's two processes, the one inside has made a session
            outside = forkserver.server.process.pid
            sessions |= {outside, *(pid for pid, process in among.items() if process.parent == outside)}
    return {pid for pid, process in among.items() if process.session in sessions}


def sockets(pids: Iterable[int]) -> set[Socket]:
    """Return the sockets that these processes have open."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                    if target.startswith("socket:["):
                        found.add((pid, target[len("socket:[") : -1]))
    return found


def listening(among: Iterable[Socket]) -> dict[Socket, int]:
    """Return the TCP ports of those sockets that listen."""
    ports = {}
    for table in ("net/tcp", "net/tcp6"):
        with suppress(OSError):  # no IPv6
            for line in proc.read(table).decode().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    ports[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return {(pid, inode): ports[inode] for pid, inode in among if inode in ports}


def files() -> set[str]:
    """Return this process's temporary files, but for those that `STAY`, and all shared memory."""
    folder = tempfile.gettempdir()
    found = {f"{folder}/{name}" for name in os.listdir(folder) if not name.startswith(STAY)}
    with suppress(OSError):
        found |= {f"{SHARED_MEMORY}/{name}" for name in os.listdir(SHARED_MEMORY)}
    return found


def is_ours(file: str) -> bool:
    """Whether a file is this process's own: shared memory that is in use by another process is not."""
    if not file.startswith(f"{SHARED_MEMORY}/"):
        return True
    with suppress(OSError):  # it has been removed meanwhile
        found = everything()
        ours = {os.getpid(), *forkservers(found), *own(found)}
        return os.stat(file).st_uid == os.geteuid() and _holders(file, found) <= ours
    return False


def _holders(file: str, among: Iterable[int]) -> set[int]:
    """Which of those processes have it mapped or open, or have made it: torch names it after its maker."""
    inode = str(os.stat(file).st_ino)
    maker = re.match(r"torch_(\d+)_", os.path.basename(file))
    found = set()
    for pid in among:
        with suppress(OSError):  # it has ended meanwhile, or belongs to another user
            mapped = any(
                line.split()[4] == inode
                for line in proc.read(f"{pid}/maps").decode(errors="replace").splitlines()
                if f" {SHARED_MEMORY}/" in line
            )
            if mapped or file in (os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")):
                found.add(pid)
        if maker and int(maker[1]) == pid:
            found.add(pid)
    return found
