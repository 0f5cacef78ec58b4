"""Names in /dev/shm that a process removes, or has removed when it ends, unless it is killed at the wrong moment."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

_FOLDER = "/dev/shm"
_FOR_A_MOMENT = re.compile(r"sem\.mp-\w+|sem\.\w{6}|torch_\d+_\w+")
"""Semaphores of multiprocessing, with glibc's temporary names too, and tensors that torch passes to another process."""
_UNTIL_THE_END = re.compile(r"psm_[0-9a-f]{8}")
"""Shared memory without a name of its own: between its creation and its entry with the resource tracker, nobody will
remove it."""


def held_by(pids: Iterable[int]) -> set[int]:
    """Inodes of shared memory that these processes have mapped or open. They should be stopped."""
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if f" {_FOLDER}/" in line:
                    inodes.add(int(line.split()[4]))
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(_FOLDER):
                    inodes.add(os.stat(f"/proc/{pid}/fd/{descriptor}").st_ino)
    return inodes


def remove(inodes: set[int], since: float) -> None:
    """Remove the remaining names of these inodes that nobody else removes.

    since: when the processes that held them were started, by the clock of files; memory that is older is not theirs.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(_FOLDER):
            if entry.inode() not in inodes:
                continue
            of_them = _UNTIL_THE_END.fullmatch(entry.name) and entry.stat().st_ctime >= since
            if of_them or _FOR_A_MOMENT.fullmatch(entry.name):
                os.unlink(entry.path)
