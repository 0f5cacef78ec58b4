"""`--outcomes FILE`: outcome and seconds of every phase of every test, appended at once.

`--unless-in FILE`: without the tests that such a file has as passed or skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    """One phase of one test."""

    test: str
    """Node id."""
    phase: str
    """`setup`, `call` or `teardown`."""
    outcome: str
    """`passed`, `failed` or `skipped`."""
    seconds: float


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="append the outcome of every test to this file")
    parser.addoption("--unless-in", type=Path, metavar="FILE", help="leave out tests that this file has as passed")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("outcomes")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if path := config.getoption("unless_in"):
        done = ended_well(load(path))
        left_out = [item for item in items if item.nodeid in done]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in done]


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # xdist appends the group of a test to its id
        test = re.sub(r"@[\w/]+(\.py)?$", "", report.nodeid)
        with self._path.open("a") as file:
            file.write(json.dumps(Outcome(test, report.when, report.outcome, round(report.duration, 3))) + "\n")


def load(path: Path) -> list[Outcome]:
    """The outcomes in a file, in their order; none where there is no file. The last line may be cut short."""
    text = path.read_text() if path.exists() else ""
    return [Outcome(*json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def ended_well(outcomes: Iterable[Outcome]) -> set[str]:
    """Node ids of the tests whose last run has ended without a failure."""
    done: set[str] = set()
    failed: set[str] = set()
    for one in outcomes:
        if one.phase == "setup":
            failed.discard(one.test)
            done.discard(one.test)
        if one.outcome == "failed":
            failed.add(one.test)
        if one.phase == "teardown" and one.test not in failed:
            done.add(one.test)
    return done
