"""`--slowest`: after the tests, a table of seconds by folder and the slowest tests, of all of `--outcomes` if given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest
from outcome_log import OUTCOMES, Outcome

SHOWN = 25


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", action="store_true", help="print seconds by folder, and the slowest tests")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    yield
    if config.getoption("slowest"):
        outcomes = config.stash[OUTCOMES]
        terminalreporter.section("seconds by folder, summed over workers")
        terminalreporter.write_line(by_folder(outcomes))
        terminalreporter.section(f"slowest {SHOWN} tests, in seconds")
        terminalreporter.write_line(slowest(outcomes))


def by_folder(outcomes: list[Outcome]) -> str:
    """Return seconds, number of tests and folder, the slowest folder first, and their sums."""
    seconds: Counter[str] = Counter()
    tests: dict[str, set[str]] = {}
    for one in outcomes:
        folder = one.test.partition("::")[0].rpartition("/")[0]
        seconds[folder] += one.seconds
        tests.setdefault(folder, set()).add(one.test)
    lines = [f"{spent:8.1f} {len(tests[folder]):6} tests  {folder}" for folder, spent in seconds.most_common()]
    return "\n".join([*lines, f"{seconds.total():8.1f} {sum(map(len, tests.values())):6} tests  in all"])


def slowest(outcomes: list[Outcome]) -> str:
    """Return seconds and node id of each of the slowest tests, with their set-up and tear-down."""
    seconds: Counter[str] = Counter()
    for one in outcomes:
        seconds[one.test] += one.seconds
    return "\n".join(f"{spent:8.1f}  {test}" for test, spent in seconds.most_common(SHOWN))
