"""Marks the reports of a test during which real ranks ran, each in its process, wherever that test is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator
from typing import Any

import pytest

CLIENT = "labkit.clusters.forkserver.client"
"""Whoever starts ranks has imported it, most of all modules of tests. It imports torch: nothing here does."""
VIRTUAL = "labkit.clusters.virtual."
_counted: set[Any] = set()
"""Classes whose `open` is counted: one, once it is imported."""
_runs = 0


def ran_for_real(report: pytest.TestReport) -> bool:
    """Whether real ranks had run, from the test's set-up to the phase of this report."""
    return bool(getattr(report, "ran_for_real", False))


def _count() -> int:
    """Number of runs of real ranks that this process has begun."""
    global _runs
    if (module := sys.modules.get(CLIENT)) and module.ForkServer not in _counted:
        _counted.add(module.ForkServer)
        opened = module.ForkServer.open

        @functools.wraps(opened)
        def counted(server: Any, asked: Any, *more: Any) -> Any:
            global _runs
            _runs += not asked.entry.main.__module__.startswith(VIRTUAL)  # virtual ranks have a process for all of them
            return opened(server, asked, *more)

        module.ForkServer.open = counted
    return _runs


_BEFORE = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEFORE] = _count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.ran_for_real = _count() > item.stash.get(_BEFORE, _runs)  # type: ignore[attr-defined]  # it travels with it
    return report
