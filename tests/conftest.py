"""For all tests: a separate workspace, and one thread for torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Set before torch is imported, which reads it. Sums are equal to the last bit on machines with any number of cores,
and parallel tests do not spin while waiting for threads that have no core."""

os.environ.setdefault("LABKIT_SPARES", "0")
"""No processes are forked ahead: they would belong to no test. Tests of spares allow them."""

# how fast inputs are drawn depends on what else the machine does
hypothesis.settings.register_profile("any load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any load")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the checkout for learners' modules."""
    folder = tmp_path / "workspace"
    monkeypatch.setenv("LABKIT_WORKSPACE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> None:
    """A shell starts background processes with Ctrl-C ignored; some tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
