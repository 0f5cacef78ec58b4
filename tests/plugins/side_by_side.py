"""Grouping of tests under pytest-xdist's `--dist loadgroup`.

The tests of one module stay together, since they share what is slow to start: a kernel, a Slurm, a graded class. Those
of `DEALT_ONE_BY_ONE` share nothing and are distributed individually. Tests with the marker `alone` look at the whole
machine or load it on purpose: `./lab test` runs them separately.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DEALT_ONE_BY_ONE = (
    "tests/course",
    "tests/autograder/test_whole_course.py",
    "autograder/tests/adversarial/test_adversarial_rubrics.py",
)
ONE_GROUP = ("tests/clusters/slurm", "tests/clusters/kubernetes")
"""Folders whose modules share one fixture."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: nothing else may run beside it")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Replaces pytest-xdist's own marker, which pytest 9.2 does not let it read."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(Path(nodeid.partition("::")[0])) or nodeid

    return ByGroup(config, log)


def group(path: Path) -> str:
    """Return the worker group of a module's tests; empty where each may run by itself."""
    if any(path.is_relative_to(folder) for folder in DEALT_ONE_BY_ONE):
        return ""
    return next((folder for folder in ONE_GROUP if path.is_relative_to(folder)), str(path))
