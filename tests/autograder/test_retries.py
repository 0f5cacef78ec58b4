"""The result that counts when a check may have failed by chance: decided per check, with the solution run too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autograder.retries import Retries, TimedResult, may_be_chance
from labkit.catalogue import Exercise
from labkit.checks import (
    CannotJudge,
    Check,
    CheckResult,
    Draw,
    ProcessRun,
    Ranks,
    Rubric,
    Submission,
    run_checks,
)
from labkit.checks.patience import NOT_RUN
from labkit.clusters import Job, RankResult, Run
from labkit.clusters.rank_result import RankError

PASSED = CheckResult("check", 1.0, earned=1.0)
TIMEOUT = CheckResult("check", 1.0, earned=0.0, run=Run([RankResult(0)], stopped="timeout after 20 s"))
CRASH = CheckResult("check", 1.0, 0.0, run=Run([RankResult(0, error=RankError("SIGSEGV", "crashed"), exit=-11)]))
WRONG = CheckResult("check", 1.0, earned=0.0, seen="3", run=Run([RankResult(0)]))
WRONG_ON_PROCESSES = CheckResult("check", 1.0, earned=0.0, seen="3", run=ProcessRun([RankResult(0)]))
LEFT_OUT = CheckResult("check", 1.0, earned=0.0, seen=f"{NOT_RUN}: 2 earlier calls had to be stopped")


def check(name: str) -> Check:
    return Check(name, name, 1.0, "", lambda: None)


class Machine:
    """Runs nothing: gives the result of each check's runs, and how long the solution takes."""

    def __init__(
        self, again: Mapping[str, Sequence[CheckResult]], solution: float | Sequence[float] = 0.1, fails: bool = False
    ) -> None:
        self.again = {name: list(results) for name, results in again.items()}
        self.solution = [solution] * 99 if isinstance(solution, float) else list(solution)
        self.fails = fails
        self.log: list[str] = []
        self.retries = Retries(self._run_again, self._run_solution, timeout=20.0)

    def _run_again(self, check: Check, limit: float) -> CheckResult:
        self.log.append(f"{check.name} {limit:g}")
        return self.again[check.name].pop(0)

    def _run_solution(self, check: Check) -> TimedResult:
        self.log.append(f"solution of {check.name}")
        return TimedResult(WRONG if self.fails else PASSED, self.solution.pop(0))

    def decide(self, name: str, first: CheckResult) -> CheckResult:
        return self.retries.decide(check(name), first)


def test_what_may_be_chance() -> None:
    assert all(map(may_be_chance, (TIMEOUT, WRONG_ON_PROCESSES, LEFT_OUT, CRASH)))
    assert not any(map(may_be_chance, (PASSED, WRONG)))


def test_a_right_submission_that_was_slow_once_has_its_marks() -> None:
    machine = Machine({"a": [PASSED, PASSED]})
    found = machine.decide("a", TIMEOUT)
    assert found.passed and found.retried == "failed at first, then passed twice: it counts"
    assert machine.log == ["a 20", "a 20"]


def test_a_hang_is_lost_when_the_solution_is_timed_after_it() -> None:
    machine = Machine({"a": [TIMEOUT]})
    found = machine.decide("a", TIMEOUT)
    assert not found.passed and found.retried == "failed in a fresh sandbox, too"
    assert machine.log == ["a 20", "solution of a"]


def test_two_runs_of_three_count() -> None:
    machine = Machine({"a": [PASSED, TIMEOUT]})
    assert machine.decide("a", TIMEOUT).retried == "failed twice and passed once: it does not count"
    assert machine.log == ["a 20", "a 20", "solution of a"]


@pytest.mark.parametrize("ending", [TIMEOUT, CRASH, WRONG_ON_PROCESSES])
def test_equal_endings_are_not_equal_causes(ending: CheckResult) -> None:
    machine = Machine({"a": [ending], "b": [PASSED, PASSED], "c": [ending]})
    found = [machine.decide(name, ending) for name in "abc"]
    assert [result.passed for result in found] == [False, True, False]
    assert {"solution of a", "solution of c"} <= set(machine.log)


def test_who_hangs_in_the_first_check_only_has_the_marks_of_all_others() -> None:
    machine = Machine({"a": [TIMEOUT], "b": [PASSED], "c": [PASSED], "d": [WRONG]})
    found = [machine.decide("a", TIMEOUT), *(machine.decide(name, LEFT_OUT) for name in "bcd")]
    assert [result.passed for result in found] == [False, True, True, False]
    assert found[1].retried == found[3].retried == "run later, in a fresh sandbox"
    assert found[3].seen == "3"


def test_while_the_first_time_out_is_in_doubt_nothing_is_lost_by_not_being_run() -> None:
    machine = Machine({"a": [PASSED, PASSED], "b": [TIMEOUT, PASSED, PASSED]})
    assert machine.decide("a", TIMEOUT).passed and machine.decide("b", LEFT_OUT).passed


def test_a_submission_that_hangs_everywhere_is_soon_given_up() -> None:
    names = "abcdefgh"
    machine = Machine({name: [TIMEOUT] for name in names})
    found = [machine.decide(name, TIMEOUT if name in "ab" else LEFT_OUT) for name in names]
    assert not any(result.passed for result in found)
    limits = [float(line.split()[1]) for line in machine.log if "solution" not in line]
    assert limits == [20, 5, *[1.25] * 6]
    assert sum("solution" in line for line in machine.log) == 8


def test_a_shorter_limit_leaves_room_for_what_the_solution_needs() -> None:
    # the solution of c takes more than a quarter of the shorter limit, so that proves nothing; it gets the full limit
    machine = Machine({"a": [TIMEOUT], "b": [TIMEOUT], "c": [TIMEOUT, PASSED, PASSED]}, solution=[0.5, 0.5, 2.0])
    found = [machine.decide(name, TIMEOUT) for name in "abc"]
    assert [result.passed for result in found] == [False, False, True]
    assert machine.log[4:] == ["c 3", "solution of c", "c 20", "c 12"]


@pytest.mark.parametrize("first", [TIMEOUT, LEFT_OUT])
def test_a_machine_too_slow_for_the_solution_gives_no_mark(first: CheckResult) -> None:
    machine = Machine({"a": [TIMEOUT, TIMEOUT]}, solution=5.0)
    with pytest.raises(CannotJudge, match=r"too slow.*'a': a call has 20 s, and one of the solution takes 5.0 s"):
        machine.decide("a", first)


@pytest.mark.parametrize("ending", [TIMEOUT, CRASH, WRONG_ON_PROCESSES])
def test_a_check_that_the_solution_fails_gives_no_mark(ending: CheckResult) -> None:
    machine = Machine({"a": [ending]}, fails=True)
    with pytest.raises(CannotJudge, match="the solution fails the check 'a', too: 3"):
        machine.decide("a", ending)


def test_when_no_time_is_left_the_solution_is_timed_all_the_same() -> None:
    machine = Machine({"a": [LEFT_OUT]})
    assert machine.decide("a", TIMEOUT).retried == "not run again: no time was left"
    assert machine.log == ["a 20", "solution of a"]
    with pytest.raises(CannotJudge, match="too slow"):
        Machine({"a": [LEFT_OUT]}, solution=6.0).decide("a", TIMEOUT)
    with pytest.raises(CannotJudge, match="too slow"):
        Machine({"a": [LEFT_OUT, LEFT_OUT]}, solution=6.0).decide("a", LEFT_OUT)


@dataclass
class TooSlow:
    """A cluster on which no run finishes."""

    nnodes: int
    nproc_per_node: int
    kind: str = "local"

    def describe(self) -> str:
        return "too slow"

    def run(self, job: Job, on_output: Any = None, on_state: Any = None) -> Run:
        return Run([RankResult(rank) for rank in range(self.nproc_per_node)], stopped="timeout after 20 s")


def test_what_a_measurement_is_compared_with_may_be_too_slow_as_well() -> None:
    """Memory and traffic of idle ranks are measured first: a time-out there is not the submission's fault."""
    exercise = Exercise("phase1_data_parallel/trainer")

    def measures(submission: Submission, ranks: Ranks, draw: Draw) -> None:
        ranks.processes(1).measured(submission.used_by(check), [None])

    rubric = Rubric(exercise, [Check("memory", "memory", 1.0, "", measures, frozenset({"memory"}))], Path("rubric.py"))
    ranks = Ranks(TooSlow, processes=TooSlow, memory_beyond=lambda idle, run: (idle(), 0))
    [result] = run_checks(rubric, Submission(exercise, ""), ranks).results
    assert not result.passed and may_be_chance(result)
