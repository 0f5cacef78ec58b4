"""Programs that the tests' zygote forks."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from labkit.linux import proc
from labkit.linux.descriptors import open_descriptors


def report(arguments: Any, own: list[int]) -> None:
    """Print what this process was given, and what it has."""
    given = [arguments, dict(os.environ), os.getcwd(), proc.read("self/comm").decode().strip()]
    print(*given, os.getpid() == os.getsid(0), sep="|")
    others = set(open_descriptors()) - {0, 1, 2, *own}
    print(sorted(number for number in others if Path(f"/proc/self/fd/{number}").exists()), len(own))
    os.write(own[0], b"written")


def draw(_: Any, __: list[int]) -> None:
    """Print what no two processes should have alike."""
    print(np.random.random(), random.random(), bytes(multiprocessing.current_process().authkey).hex())
    print(tempfile.gettempdir())


def end(status: int, _: list[int]) -> None:
    """End with that exit status."""
    sys.exit(status)


def last(_: Any, __: list[int]) -> None:
    """Run until it is killed."""
    signal.pause()


_preparations = 0


def prepare() -> None:
    """Prepare a forkserver."""
    global _preparations
    _preparations += 1


def preparations(_: Any, __: list[int]) -> None:
    """Print how often this process was prepared before it was forked, and by which forkserver it was forked."""
    print(_preparations, os.getppid(), flush=True)
