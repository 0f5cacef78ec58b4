"""A test of real processes that fails is run once more, alone: `./lab test` does it after all other tests.

The run in which it fails ends with exit status 0, unless something else has failed; the run with `--second-try`
decides. What passes then is not failed, but has passed by luck before: a table names it, with the commit and the
output of its failure. No other test has a second try.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import tiers
from earlier_runs import FOLDER, EarlierRuns, without_group
from ran_for_real import ran_for_real

PHASES = ("setup", "call", "teardown")


@dataclass(frozen=True)
class Failure:
    """A phase of a test that has failed."""

    test: str
    phase: str
    """`setup`, `call` or `teardown`; something else for what is no phase, such as a crash of xdist's worker."""
    output: str
    """pytest's text about it, with what was captured."""
    commit: str
    real: bool = False
    """Whether ranks had run in processes: the table need not name such a test."""
    again: list[str] = field(default_factory=list)
    """What to run once more."""

    @property
    def may_be_luck(self) -> bool:
        """Whether it has a second try."""
        return self.phase in PHASES and (self.real or bool(tiers.real_kind(self.test)))


def all_may_be_luck(status: int, failed: int, failures: Sequence[Failure]) -> bool:
    """Whether a run failed by nothing but tests that have a second try.

    status: exit status. failed: number of failures by pytest's count, in which are those of collection, too.
    """
    nothing_else = status == pytest.ExitCode.TESTS_FAILED and failed == len(failures) > 0
    return nothing_else and all(failure.may_be_luck for failure in failures)


def commit(folder: Path) -> str:
    """Return the commit of that checkout, with `-dirty` if it has been changed since."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "no commit"
    except FileNotFoundError:
        return "no git"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-try", action="store_true", help="run what failed in earlier runs of ./lab test, alone")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("second_try"):
        second = SecondTry()
        if not second.tests:
            raise pytest.UsageError("--second-try: no test that may have a second try failed in an earlier run")
        config.args[:] = [str(config.rootpath / test) for test in second.tests]
        config.pluginmanager.register(second)
    elif FOLDER is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FirstTry(commit(config.rootpath)))


class FirstTry:
    """Keeps failures of this run for the second try."""

    def __init__(self, of_commit: str) -> None:
        self._commit = of_commit
        self._failures: list[Failure] = []
        self._ran: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = without_group(report.nodeid)
        self._ran[test] = None
        if report.failed:
            captured = [f"--- {title} ---\n{text}" for title, text in report.sections]
            output = "\n".join([report.longreprtext, *captured])
            self._failures.append(Failure(test, report.when or "", output, self._commit, ran_for_real(report)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        for failure in self._failures:
            failure.again[:] = together(failure.test, failure.phase, self._ran)
        EarlierRuns("failures").joined_by([asdict(failure) for failure in self._failures if failure.may_be_luck])
        if all_may_be_luck(exitstatus, session.testsfailed, self._failures):
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        yield
        tests = {failure.test for failure in self._failures if failure.may_be_luck}
        if tests:
            terminalreporter.write_line(
                f"to be run once more, alone, at the end: {', '.join(sorted(tests))}", yellow=True
            )


class SecondTry:
    """Runs the tests that failed, and says which of them pass now."""

    def __init__(self) -> None:
        self._failures = [Failure(**row) for row in EarlierRuns("failures").joined_by([])]
        self.tests = [*dict.fromkeys(test for failure in self._failures for test in failure.again)]
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def _lucky(self) -> list[Failure]:
        """Return what has failed before and passes now: a test that is skipped does not."""
        return [
            failure
            for failure in self._failures
            if failure.test in self._passed and self._failed.isdisjoint(failure.again)
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        lucky = self._lucky()
        EarlierRuns("lucky").joined_by([asdict(failure) for failure in lucky])
        if exitstatus == pytest.ExitCode.OK and len(lucky) < len(self._failures):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        yield
        lucky = self._lucky()
        for failure in self._failures:
            if failure not in lucky:
                terminalreporter.write_line(f"did not pass alone either: {failure.test} ({failure.phase})", red=True)
        if not lucky:
            return
        terminalreporter.section("failed, and passed alone: by luck", yellow=True)
        for failure in lucky:
            terminalreporter.write_line(f"{failure.test} ({failure.phase}), commit {failure.commit}")
        for failure in lucky:
            terminalreporter.section(failure.test, sep="-")
            terminalreporter.write_line(failure.output)
        terminalreporter.section("to make it fail again", sep="-")
        for test in dict.fromkeys(failure.test for failure in lucky):
            terminalreporter.write_line(f"./lab test --until-failure {shlex.quote(test)} --busy 8")


def together(test: str, phase: str, ran: Iterable[str]) -> list[str]:
    """Return the tests to run once more for one that has failed: itself, or all of its module that are in `ran`.

    A tear-down may fail by what another test of the module has left, and cells of a notebook build on those before.
    """
    file = test.partition("::")[0]
    if phase != "teardown" and not file.endswith(".ipynb"):
        return [test]
    return [other for other in ran if other.partition("::")[0] == file]
