"""`--slowest`: after the tests, a table of seconds by folder and the slowest tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest
from earlier_runs import EarlierRuns, without_group

SHOWN = 25
Row = tuple[str, float]
"""Node id and seconds of one phase of one test: set-up, call or tear-down."""
_rows = pytest.StashKey[list[Row]]()
_earlier = pytest.StashKey[EarlierRuns]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", action="store_true", help="print seconds by folder, and the slowest tests")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_rows] = []
    config.stash[_earlier] = EarlierRuns("seconds")
    config.pluginmanager.register(_Timing(config.stash[_rows]))


class _Timing:
    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._rows.append((without_group(report.nodeid), report.duration))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    yield
    rows = config.stash[_earlier].joined_by(config.stash[_rows])
    if config.getoption("slowest"):
        terminalreporter.section("seconds by folder, summed over workers")
        terminalreporter.write_line(by_folder(rows))
        terminalreporter.section(f"slowest {SHOWN} tests, in seconds")
        terminalreporter.write_line(slowest(rows))


def by_folder(rows: list[Row]) -> str:
    """Return seconds, number of tests and folder, the slowest folder first, and their sums."""
    seconds: Counter[str] = Counter()
    tests: dict[str, set[str]] = {}
    for test, duration in rows:
        folder = test.partition("::")[0].rpartition("/")[0]
        seconds[folder] += duration
        tests.setdefault(folder, set()).add(test)
    lines = [f"{spent:8.1f} {len(tests[folder]):6} tests  {folder}" for folder, spent in seconds.most_common()]
    return "\n".join([*lines, f"{seconds.total():8.1f} {sum(map(len, tests.values())):6} tests  in all"])


def slowest(rows: list[Row]) -> str:
    """Return seconds and node id of each of the slowest tests, with their set-up and tear-down."""
    seconds: Counter[str] = Counter()
    for test, duration in rows:
        seconds[test] += duration
    return "\n".join(f"{spent:8.1f}  {test}" for test, spent in seconds.most_common(SHOWN))
