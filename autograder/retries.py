"""Re-runs for checks that may have failed by chance.

A check is lost when it fails twice and the solution passes it on the same machine at the same time. If the second run
was stopped, the solution must also need less than a quarter of its time limit: otherwise the machine is too slow, and
there is no mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.checks import CannotJudge, Check, CheckResult, ProcessRun
from labkit.checks.patience import NOT_RUN

MARGIN = 4.0
"""Factor over the solution's time that a call may take before a time-out is believed."""
_SHORTEST = 1.5 * MARGIN
"""Smallest limit as a factor over the solution's time, so that few calls must be repeated."""


@dataclass(frozen=True)
class TimedResult:
    """Result of one check on the solution."""

    result: CheckResult
    seconds: float
    """Duration of the longest call, in seconds."""


class Retries:
    """Decides about the checks of one submission.

    run_again: runs a check on the submission, alone in a fresh sandbox, with the same inputs and the given seconds per
    call. run_solution: runs it on the solution in the same way, when no process of the submission is left. timeout:
    seconds for a call. All seconds are by a clock that excludes time taken by other programs.
    """

    def __init__(
        self,
        run_again: Callable[[Check, float], CheckResult],
        run_solution: Callable[[Check], TimedResult],
        timeout: float,
    ) -> None:
        self._run_again = run_again
        self._run_solution = run_solution
        self._timeout = timeout
        self._slowest = 0.0
        """Duration of the solution's slowest call so far, in seconds."""
        self._hangs = 0
        """Number of checks lost because they were stopped."""

    def decide(self, check: Check, first: CheckResult) -> CheckResult:
        """Return the result that counts for a check that may have failed by chance. Raises `CannotJudge`."""
        not_run = first.seen.startswith(NOT_RUN)
        if not_run:
            first = replace(self._run(check), retried="run later, in a fresh sandbox")
            if not may_be_chance(first):
                return first
            if was_stopped(first) and self._hangs > 1:  # no more time for a submission that hangs everywhere
                return self._lost(check, first, first)
        second = self._run(check)
        if not second.passed:
            how = "not run again: no time was left" if was_not_run(second) else "failed in a fresh sandbox, too"
            if second.of_the_machine:
                first = _with_this_submission_only(check, second)
            return self._lost(check, second, replace(first, retried=how))
        third = self._run(check)
        if third.passed:
            return replace(third, retried="failed at first, then passed twice: it counts")
        if third.of_the_machine:
            raise CannotJudge(f"{check.title!r}: {third.seen}, in two of three runs")
        return self._lost(check, third, replace(third, retried="failed twice and passed once: it does not count"))

    def _lost(self, check: Check, last: CheckResult, shown: CheckResult) -> CheckResult:
        """Confirm that a check is lost; return `shown`, the result for the learner. last: result of the last run."""
        if was_stopped(last):
            self._hangs += 1  # the solution was timed after it
        elif (seconds := self._time_solution(check)) * MARGIN >= self._timeout:
            raise self._too_slow(check, self._timeout, seconds)
        return shown

    def _run(self, check: Check) -> CheckResult:
        """Run the check; if it was stopped, verify that the machine was fast enough."""
        limit = self._limit()
        result = self._run_again(check, limit)
        if was_stopped(result) and self._time_solution(check) * MARGIN >= limit:
            if limit < self._timeout:
                limit, result = self._timeout, self._run_again(check, self._timeout)
            if was_stopped(result) and (seconds := self._time_solution(check)) * MARGIN >= limit:
                raise self._too_slow(check, limit, seconds)
        return result

    @staticmethod
    def _too_slow(check: Check, limit: float, seconds: float) -> CannotJudge:
        return CannotJudge(
            f"this machine is too slow at the moment to judge {check.title!r}: a call has {limit:g} s, and one of the "
            f"solution takes {seconds:.1f} s"
        )

    def _limit(self) -> float:
        """Return the seconds for a call: fewer once checks were lost to hangs, but enough for slightly slower code."""
        return min(self._timeout, max(self._timeout / MARGIN ** min(self._hangs, 2), _SHORTEST * self._slowest))

    def _time_solution(self, check: Check) -> float:
        """Return the seconds of its longest call, measured now. Raises `CannotJudge` when the solution fails."""
        timed = self._run_solution(check)
        if not timed.result.passed:
            raise CannotJudge(f"the solution fails the check {check.title!r}, too: {timed.result.seen}")
        self._slowest = max(self._slowest, timed.seconds)
        return timed.seconds


def _with_this_submission_only(check: Check, result: CheckResult) -> CheckResult:
    """Return the result of a check that the grading machine can run on the solution, and not on the submission."""
    seen = "the check could run with the solution, and not with this module: the machine had no memory or files left"
    look_at = "how much each rank returns, sends and prints"
    return replace(result, seen=seen, look_at=look_at, todo=check.todo, of_the_machine=False)


def may_be_chance(result: CheckResult) -> bool:
    """Return whether the failure may not recur. On virtual ranks, wrong values and exceptions always recur."""
    run = result.run
    if result.passed or result.skipped:
        return False
    if result.of_the_machine:
        return True
    if was_not_run(result) or isinstance(run, ProcessRun):
        return True
    if run is None:
        return False
    ended_by_itself = any(rank.exit not in (0, None) and (e := rank.error) and e.is_mere_end for rank in run.ranks)
    return ended_by_itself or was_stopped(result)


def was_stopped(result: CheckResult) -> bool:
    """Return whether the last call was stopped by a time limit or another limit."""
    run = result.run
    return bool(not result.passed and run and run.stopped and not run.stopped.startswith("deadlock"))


def was_not_run(result: CheckResult) -> bool:
    return result.seen.startswith(NOT_RUN)
