"""Temporary names in /dev/shm, which a process removes after a moment, unless it is killed in that moment."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

_FOLDER = "/dev/shm"
_FOR_A_MOMENT = re.compile(r"sem\.mp-\w+|sem\.\w{6}|torch_\d+_\w+")
"""Semaphores of multiprocessing, with glibc's temporary names too, and tensors that torch passes to another process."""


def held_by(pids: Iterable[int]) -> set[int]:
    """Inodes of shared memory that these processes have mapped or open. They should be stopped."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if f" {_FOLDER}/" in line:
                    found.add(int(line.split()[4]))
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(_FOLDER):
                    found.add(os.stat(f"/proc/{pid}/fd/{descriptor}").st_ino)
    return found


def remove(inodes: set[int]) -> None:
    """Remove the remaining temporary names of these inodes."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(_FOLDER):
            if entry.inode() in inodes and _FOR_A_MOMENT.fullmatch(entry.name):
                os.unlink(entry.path)
