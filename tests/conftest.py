"""For all tests: a workspace of their own, and under CI=true no skip but those that are expected."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

EXPECTED_SKIPS = ("needs a GPU",)
"""Beginnings of the reasons for which a test may be skipped in CI, which has no such thing."""


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_unexpected_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_unexpected_skip((yield))


def _no_unexpected_skip(report: Report) -> Report:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        where, line, reason = report.longrepr
        if not reason.removeprefix("Skipped: ").startswith(EXPECTED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{where}:{line}: skipped in CI, where nothing is missing: {reason}"
    return report
