"""Kernels of tests have their sockets in files: ports are chosen before a kernel opens them; by then some are taken."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

_folder = tempfile.TemporaryDirectory(prefix="kernels-")
_numbers = itertools.count()


def kernel_manager(**options: Any) -> KernelManager:
    """A manager of a kernel that is not started yet."""
    place = Path(_folder.name, f"{next(_numbers)}.json")
    return KernelManager(transport="ipc", connection_file=str(place), **options)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("nbval", default=False):
        import nbval.kernel

        nbval.kernel.KernelManager = kernel_manager
