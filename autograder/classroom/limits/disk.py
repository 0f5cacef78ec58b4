"""The disk space of a learner: the home and the own folder of submissions, counted by du.

Ordinary users cannot set quotas, so writing is noticed, not prevented. No server is stopped or refused for a full home,
since the learner needs it to make room; what ends is what makes the home grow further.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.limits.sandboxes import RunningServer
from autograder.sandbox.bwrap import bwrap
from labkit.linux.processes import send_signal

_GIB = 1 << 30
_INODE_BYTES = 4096
"""Bytes that a file counts besides its blocks: file systems have a limited number of files, too."""
_BEYOND = 1.1
"""Share of the limit beyond which writing ends processes. Below it the learner is only warned."""
_GROWTH_BYTES = 1 << 20
"""Growth between two looks that is no reason to end anything: saving a notebook is allowed."""


def used_bytes(folders: Sequence[Path]) -> dict[Path, int]:
    """Return the disk space of each folder. A file with several names counts once."""
    command = ["du", "--summarize"]
    if os.geteuid() != 0:
        # learners' files belong to this user, who may not read a folder of mode 000, but the root of a namespace may
        system = [part for path in ("/usr", "/bin", "/lib", "/lib64") for part in ("--ro-bind-try", path, path)]
        own = [part for path in folders for part in ("--ro-bind-try", str(path), str(path))]
        namespace = ["--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_DAC_READ_SEARCH"]
        command = [bwrap(), *namespace, "--die-with-parent", *system, *own, "--", *command]
    totals = dict.fromkeys(folders, 0)
    for option, unit in (("--block-size=1", 1), ("--inodes", _INODE_BYTES)):
        # status 1: a file was deleted meanwhile; du prints what it has counted all the same
        done = subprocess.run([*command, option, *map(str, folders)], capture_output=True)
        for line in done.stdout.splitlines():
            number, _, path = line.partition(b"\t")
            totals[Path(os.fsdecode(path))] += int(number) * unit
    return totals


@dataclass(frozen=True)
class _Look:
    used_bytes: int
    warned: bool
    """Whether the learner has been warned since the home was last below the limit."""


class DiskLimit:
    """The limit of each learner's disk space."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._looks: dict[RunningServer, _Look] = {}

    def look(self, server: RunningServer, used_bytes: int, notify: Callable[[str], None]) -> None:
        """Record what a learner uses; warn, or end what writes. notify: called first, with the text for the learner."""
        before = self._looks.get(server)
        warned = used_bytes > self._limit
        self._looks[server] = _Look(used_bytes, warned)
        about = f"Your files use {used_bytes / _GIB:.2f} of {self._limit / _GIB:g} GiB of disk. "
        grew = before is not None and used_bytes > before.used_bytes + _GROWTH_BYTES
        if used_bytes > _BEYOND * self._limit and grew:
            writing = server.started_by_learner()
            if writing:
                notify(f"{about}Kernels, ranks and terminals were ended, since more was written. Delete files.")
                for pid in writing:
                    send_signal(pid, signal.SIGKILL)
            else:  # an upload
                notify(f"{about}Your server was stopped, since more was written. Start it again, and delete files.")
                send_signal(server.first, signal.SIGKILL)
        elif warned and (before is None or not before.warned):
            notify(f"{about}Delete files that you do not need; programs that write much more are ended.")

    def forget(self, ended: RunningServer) -> None:
        """Forget a server that has ended."""
        self._looks.pop(ended, None)
