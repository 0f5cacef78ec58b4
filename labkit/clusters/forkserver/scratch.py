"""A folder for the files that multiprocessing creates in every process, removed with the run.

A data worker that is killed cannot remove its own: each would leave a `pymp-...` in TMPDIR.
"""

from __future__ import annotations

import multiprocessing.process
import os
import shutil
import tempfile
from collections.abc import Mapping


def make(environment: Mapping[str, str]) -> str | None:
    """Create such a folder. Returns its path, or None if it cannot be created.

    environment: that of the run, whose TMPDIR counts.
    """
    folder = _path(environment.get("TMPDIR") or tempfile.gettempdir(), os.getpid())
    try:
        os.mkdir(folder, 0o700)
    except OSError:  # each process then creates its own, as without the lab
        return None
    return folder


def use(folder: str | None) -> None:
    """Make this process, and all forked from it, use the folder; None changes nothing."""
    if folder is not None:
        multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # private


def remove(folder: str | None) -> None:
    """Remove the folder, once all processes that use it have ended."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def remove_that_of(supervisor: int) -> None:
    """Remove the folder of a supervisor that could not do it itself."""
    remove(_path(tempfile.gettempdir(), supervisor))


def _path(parent: str, supervisor: int) -> str:
    # short, as multiprocessing's own names are: the address of a socket has 108 bytes
    return os.path.join(parent, f"labkit-{supervisor}")
