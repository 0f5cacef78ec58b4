"""Marks the reports of a test during which ranks ran in processes, wherever that test is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator
from typing import Any

import pytest

CLIENT = "labkit.clusters.forkserver.client"
"""Whoever starts ranks in processes has imported it. It imports torch: nothing here does."""
_counted: set[Any] = set()
"""Classes whose `open` is counted: one, once it is imported."""
_runs = 0


def ran_for_real(report: pytest.TestReport) -> bool:
    """Whether ranks had run in processes, from the test's set-up to the phase of this report."""
    return bool(getattr(report, "ran_for_real", False))


def _count() -> int:
    """Number of runs that this process has begun on forkservers."""
    global _runs
    if (module := sys.modules.get(CLIENT)) and module.ForkServer not in _counted:
        _counted.add(module.ForkServer)
        _runs += len(module._all)  # those that the test which imports it has made: their runs were not counted yet
        opened = module.ForkServer.open

        @functools.wraps(opened)
        def counted(*arguments: Any, **options: Any) -> Any:
            global _runs
            _runs += 1
            return opened(*arguments, **options)

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
