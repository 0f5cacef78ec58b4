"""The sandboxes that a hub has started on this machine, one for each running server, and the processes in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from autograder.sandbox import processes
from labkit.clusters.forkserver import starting
from labkit.linux import proc
from labkit.zygote import kernel

_ZYGOTE = "labkit.zygote"
"""Module in the command of the hub's zygote."""
_NAMES = {kernel.NAME: "a notebook's kernel", starting.NAME: "a rank"}


@dataclass(frozen=True)
class RunningServer:
    """The sandbox of one learner's server."""

    learner: str
    first: int
    """PID of bubblewrap, whose end is the end of everything in the sandbox."""
    born: int
    """Start time of that process: another one may have its PID later."""
    zygote: int | None = field(default=None, compare=False)
    """PID of the learner's zygote, which the hub's has forked into the sandbox; None before that."""

    def pids(self) -> list[int]:
        """Return the PIDs of all processes in the sandbox, and of bubblewrap."""
        return [*processes.all_of(self.first), *([] if self.zygote is None else processes.all_of(self.zygote))]

    def kept(self) -> set[int]:
        """Return the PIDs of the sandbox's own processes: bubblewrap, init and a waiting program; zygote and server."""
        own = {self.first}
        parents = [*proc.children(self.first), *([] if self.zygote is None else [self.zygote])]
        for parent in parents:
            own.add(parent)
            # init adopts the learner's orphans; the first process that each parent has started is not one of them
            born = {pid: start for pid in proc.children(parent) if (start := processes.born(pid)) is not None}
            if born:
                own.add(min(born, key=lambda pid: (born[pid], pid)))
        return own

    def started_by_learner(self) -> list[int]:
        """Return the PIDs of everything else: kernels, ranks, terminals."""
        kept = self.kept()
        return [pid for pid in self.pids() if pid not in kept and holds_memory(pid)]


def running(hub: int, homes: Path) -> Iterator[RunningServer]:
    """Yield the servers of the hub with this PID. homes: the folder of learners' homes."""
    commands: dict[int, list[str]] = {}
    for pid in proc.children(hub):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            commands[pid] = [os.fsdecode(part) for part in proc.read(f"{pid}/cmdline").split(b"\0")]
    zygotes = {space: pid for pid, command in commands.items() if _ZYGOTE in command for space, pid in _entered(pid)}
    for pid, command in commands.items():
        if learner := learner_of(command, homes):
            with contextlib.suppress(OSError):
                spaces = {_pid_namespace(init) for init in proc.children(pid)}
                zygote = next((zygote_pid for space, zygote_pid in zygotes.items() if space in spaces), None)
                yield RunningServer(learner, pid, proc.started(pid), zygote)


def _entered(zygote: int) -> Iterator[tuple[str, int]]:
    """Yield PID namespaces and the PIDs of the processes that the hub's zygote has forked into them."""
    for watcher in proc.children(zygote):
        for pid in proc.children(watcher):
            with contextlib.suppress(OSError):
                yield _pid_namespace(pid), pid


def _pid_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def learner_of(command: Sequence[str], homes: Path) -> str:
    """Return the learner whose home a sandbox has; empty if this command starts no learner's sandbox."""
    for option, path in pairwise(command):
        if option == "--bind" and Path(path).parent == homes:
            return Path(path).name
    return ""


def name_of(pid: int) -> str:
    """Return a learner's word for a process: `a notebook's kernel`, `a rank`, or its program."""
    try:
        if (known := _NAMES.get(proc.read(f"{pid}/comm").decode(errors="replace").strip())) is not None:
            return known
        command = proc.read(f"{pid}/cmdline")
        return f"the program {os.path.basename(os.fsdecode(command.split(bytes(1))[0]))[:40]!r}"
    except OSError:
        return "a process"


def holds_memory(pid: int) -> bool:
    """Return whether a process is not ending: one that has ended may be listed until its parent takes notice."""
    try:
        return "VmRSS" in proc.table(f"{pid}/status")
    except OSError:
        return False
