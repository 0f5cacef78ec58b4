"""For all tests: a workspace of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Learners' modules are kept here, not in the checkout."""
    folder = tmp_path / "workspace"
    monkeypatch.setenv("LABKIT_WORKSPACE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Sums are the same to the last bit on machines with any number of cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> None:
    """A shell starts what runs in the background with Ctrl-C ignored; some tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
