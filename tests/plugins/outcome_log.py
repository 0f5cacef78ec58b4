"""`--outcomes FILE`: outcome and seconds of every phase of every test, appended at once.

`--unless-in FILE`: without the tests that such a file has as passed or skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from earlier_runs import without_group


class Outcome(NamedTuple):
    """One phase of one test."""

    test: str
    """Node id."""
    phase: str
    """`setup`, `call` or `teardown`."""
    outcome: str
    """`passed`, `failed` or `skipped`."""
    seconds: float


OUTCOMES = pytest.StashKey[list[Outcome]]()
"""All outcomes of this run so far, after those that were in its file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="append the outcome of every test to this file")
    parser.addoption("--unless-in", type=Path, metavar="FILE", help="leave out tests that this file has as passed")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        writer = _Writer(config.getoption("outcomes"))
        config.stash[OUTCOMES] = writer.outcomes
        config.pluginmanager.register(writer)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if path := config.getoption("unless_in"):
        done = ended_well(load(path))
        left_out = [item for item in items if item.nodeid in done]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in done]


class _Writer:
    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.outcomes = load(path) if path else []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        one = Outcome(without_group(report.nodeid), report.when or "", report.outcome, round(report.duration, 3))
        self.outcomes.append(one)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(one) + "\n")


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
