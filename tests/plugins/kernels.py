"""Kernels of tests are forked from one warm process for the whole run, and so are the forkservers of their ranks.

A kernel started as a program imports for five seconds of a core until its first cell has run on ranks. A fork is a
process of its own that has imported the same. Where the warm process is gone, kernels are started as programs.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from labkit.zygote import ADDRESS

_FOLDER = "LAB_TEST_KERNELS"
"""Environment variable: the folder of the run's kernels, which pytest-xdist's workers share."""
_numbers = itertools.count()


def kernel_manager(**options: Any) -> KernelManager:
    """Return a manager of a kernel that is not started yet.

    Its sockets are files: ports are chosen before a kernel opens them; by then some are taken.
    """
    folder = Path(os.environ[_FOLDER])
    place = folder / f"{os.getpid()}-{next(_numbers)}.json"
    manager = KernelManager(transport="ipc", connection_file=str(place), **options)
    manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": "labkit-zygote"}
    manager.kernel_spec.env[ADDRESS] = str(_warm_process(folder))
    return manager


def _warm_process(folder: Path) -> Path:
    return folder / "warm"


def pytest_configure(config: pytest.Config) -> None:
    if _FOLDER not in os.environ:  # else this is a worker, or a run that a test has started
        folder = tempfile.TemporaryDirectory(prefix="kernels-")
        os.environ[_FOLDER] = folder.name
        program = [sys.executable, "-P", str(Path(__file__).with_name("warm_process.py"))]
        warm = subprocess.Popen([*program, str(_warm_process(Path(folder.name)))])

        def end() -> None:
            warm.kill()
            warm.wait()
            del os.environ[_FOLDER]
            folder.cleanup()

        config.add_cleanup(end)
    if config.getoption("nbval", default=False):
        import nbval.kernel

        nbval.kernel.KernelManager = kernel_manager
