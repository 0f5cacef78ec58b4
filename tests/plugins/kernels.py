"""Kernels of tests are forked from a warm process, and so are the forkservers of their ranks.

A kernel started as a program imports for five seconds of a core until its first cell has run on ranks. A fork is a
process of its own that has imported the same. Where the warm process is gone, kernels are started as programs.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from labkit.zygote import ADDRESS

_folder = tempfile.TemporaryDirectory(prefix="kernels-")
_numbers = itertools.count()
_started: list[subprocess.Popen[bytes]] = []


def kernel_manager(**options: Any) -> KernelManager:
    """Return a manager of a kernel that is not started yet.

    Its sockets are files: ports are chosen before a kernel opens them; by then some are taken.
    """
    place = Path(_folder.name, f"{next(_numbers)}.json")
    manager = KernelManager(transport="ipc", connection_file=str(place), **options)
    manager.kernel_spec.metadata["kernel_provisioner"] = {"provisioner_name": "labkit-zygote"}
    manager.kernel_spec.env[ADDRESS] = str(_warm_process())
    return manager


@cache
def _warm_process() -> Path:
    """Start the warm process, which ends with this one; return where it listens."""
    from left_over import lasting  # pytest loads that plugin after this one

    path = Path(_folder.name, "warm")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, lasting():
        listening.bind(str(path))
        listening.listen()  # who asks before it has imported everything waits
        command = [sys.executable, "-P", str(Path(__file__).with_name("warm_process.py")), str(listening.fileno())]
        _started.append(subprocess.Popen(command, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL))
    return path


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("nbval", default=False):
        import nbval.kernel

        nbval.kernel.KernelManager = kernel_manager
