"""The sandboxes that a hub has started on this machine, one for each running server, and the processes in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from autograder.sandbox import processes
from labkit.linux import proc


@dataclass(frozen=True)
class RunningServer:
    """The sandbox of one learner's server."""

    learner: str
    first: int
    """PID of bubblewrap, whose end is the end of everything in the sandbox."""
    born: int
    """Start time of that process: another one may have its PID later."""

    def kept(self) -> set[int]:
        """Return the PIDs of bubblewrap, the sandbox's init and the server itself."""
        found = {self.first}
        for init in proc.children(self.first):
            found.add(init)
            # init adopts orphans of the learner's; the server is the first that it has started
            born = {pid: start for pid in proc.children(init) if (start := processes.born(pid)) is not None}
            if born:
                found.add(min(born, key=lambda pid: (born[pid], pid)))
        return found

    def started_by_learner(self) -> list[int]:
        """Return the PIDs of everything else: kernels, ranks, terminals."""
        kept = self.kept()
        return [pid for pid in processes.all_of(self.first) if pid not in kept and holds_memory(pid)]


def running(hub: int, homes: Path) -> Iterator[RunningServer]:
    """Yield the servers of the hub with this PID. homes: the folder of learners' homes."""
    for pid in proc.children(hub):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            command = [os.fsdecode(part) for part in proc.read(f"{pid}/cmdline").split(b"\0")]
            if learner := learner_of(command, homes):
                yield RunningServer(learner, pid, proc.started(pid))


def learner_of(command: Sequence[str], homes: Path) -> str:
    """Return whose home a sandbox has as its own; empty if this command starts no learner's sandbox."""
    for option, path in pairwise(command):
        if option == "--bind" and Path(path).parent == homes:
            return Path(path).name
    return ""


def name_of(pid: int) -> str:
    """Return what a process is for the learner: `a notebook's kernel`, `a rank`, or its program."""
    try:
        command = proc.read(f"{pid}/cmdline")
        if b"ipykernel_launcher" in command:
            return "a notebook's kernel"
        if b"forkserver/launch.py" in command:
            return "a rank"
        return f"the program {os.path.basename(os.fsdecode(command.split(bytes(1))[0]))[:40]!r}"
    except OSError:
        return "a process"


def holds_memory(pid: int) -> bool:
    """Return whether a process is not ending: one that has ended may be listed until its parent takes notice."""
    try:
        return "VmRSS" in proc.table(f"{pid}/status")
    except OSError:
        return False
