"""Under CI=true a skipped test is a failure, unless its reason is expected."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

EXPECTED_SKIPS = ("needs a GPU", "needs kubectl 1.21", "needs a path without spaces")
"""Prefixes of skip reasons that are allowed in CI: hardware and newer programs that it does not have, and what torch
cannot do where the checkout is."""
EXPECTED_ON_A_BARE_MACHINE = ("needs system packages", "needs root")
"""The same with `--bare`; the run without it has both."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bare", action="store_true", help="expect skips for want of system packages and of root, also under CI=true"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_unexpected_skip((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_unexpected_skip((yield), collector.config)


def _no_unexpected_skip(report: Report, config: pytest.Config) -> Report:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        where, line, reason = report.longrepr
        expected = EXPECTED_SKIPS + (EXPECTED_ON_A_BARE_MACHINE if config.getoption("bare") else ())
        if not reason.removeprefix("Skipped: ").startswith(expected):
            report.outcome = "failed"
            report.longrepr = f"{where}:{line}: skipped in CI, where nothing is missing: {reason}"
    return report
