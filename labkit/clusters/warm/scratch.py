"""A folder for the files that multiprocessing makes in every process, removed with the run.

A data worker that is killed cannot remove its own: `pymp-...` would be left in TMPDIR, once for each worker.
"""

from __future__ import annotations

import multiprocessing.process
import os
import shutil
import tempfile
from collections.abc import Mapping


def make(environment: Mapping[str, str]) -> str | None:
    """From now on this process, and all that are forked from it, use it. Its path, None where none can be made.

    environment: that of the run, whose TMPDIR counts.
    """
    folder = _path(environment.get("TMPDIR") or tempfile.gettempdir(), os.getpid())
    try:
        os.mkdir(folder, 0o700)
    except OSError:  # then each process makes its own, as it does without the lab
        return None
    multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # no public way
    return folder


def remove(folder: str | None) -> None:
    """Once all processes that use it have ended."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def remove_that_of(supervisor: int) -> None:
    """When that process could not do it itself."""
    remove(_path(tempfile.gettempdir(), supervisor))


def _path(parent: str, supervisor: int) -> str:
    # short, as multiprocessing's own names are: the address of a socket has 108 bytes
    return os.path.join(parent, f"labkit-{supervisor}")
