"""Checks that may have failed by chance, each decided by runs of its own.

A check is lost when it fails in two runs, and the solution passes it here and now. If the second run was stopped, the
solution must also need less than a quarter of the limit for it: else the machine is too slow, and there is no mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.checks import CannotJudge, Check, CheckResult, ProcessRun
from labkit.checks.patience import NOT_RUN

MARGIN = 4.0
"""A call may take so many times as long as the solution's before a time-out is believed."""
_SHORTEST = 1.5 * MARGIN
"""Limits are no shorter than so many times what the solution has needed, so that few must be tried again."""


@dataclass(frozen=True)
class Timed:
    """How a check went with the solution."""

    result: CheckResult
    seconds: float
    """That its longest call took."""


class Retries:
    """Decides about the checks of one submission.

    run_again: runs a check on the submission, alone in a fresh sandbox, on the same draw, with so many seconds for a
    call. run_solution: runs it on the solution in the same way, when no process of the submission is left. timeout:
    seconds for a call. All seconds are those of a clock that other programs do not speed up.
    """

    def __init__(
        self,
        run_again: Callable[[Check, float], CheckResult],
        run_solution: Callable[[Check], Timed],
        timeout: float,
    ) -> None:
        self._run_again = run_again
        self._run_solution = run_solution
        self._timeout = timeout
        self._slowest = 0.0
        """Of the solution's calls so far."""
        self._hangs = 0
        """Checks that are lost since they were stopped."""

    def decide(self, check: Check, first: CheckResult) -> CheckResult:
        """What counts for a check that may have failed by chance. Raises `CannotJudge`."""
        not_run = first.seen.startswith(NOT_RUN)
        if not_run:
            first = replace(self._run(check), retried="run later, in a fresh sandbox")
            if not may_be_chance(first):
                return first
            if was_stopped(first) and self._hangs > 1:  # a submission that hangs everywhere is not worth more time
                return self._lost(check, first, first)
        second = self._run(check)
        if not second.passed:
            how = "not run again: no time was left" if was_not_run(second) else "failed in a fresh sandbox, too"
            return self._lost(check, second, replace(first, retried=how))
        third = self._run(check)
        if third.passed:
            return replace(third, retried="failed at first, then passed twice: it counts")
        return self._lost(check, third, replace(third, retried="failed twice and passed once: it does not count"))

    def _lost(self, check: Check, last: CheckResult, shown: CheckResult) -> CheckResult:
        """last: how the last run ended. shown: what the learner is to see."""
        if was_stopped(last):
            self._hangs += 1  # the solution was timed after it
        elif (seconds := self._time_solution(check)) * MARGIN >= self._timeout:
            raise self._too_slow(check, self._timeout, seconds)
        return shown

    def _run(self, check: Check) -> CheckResult:
        """Run it; if it was stopped, make sure that it was not for want of a faster machine."""
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
        """Seconds for a call: less once checks are lost since they hang, but enough for what is not much slower."""
        return min(self._timeout, max(self._timeout / MARGIN ** min(self._hangs, 2), _SHORTEST * self._slowest))

    def _time_solution(self, check: Check) -> float:
        """Seconds that its longest call takes, here and now. Raises `CannotJudge` when it does not pass."""
        timed = self._run_solution(check)
        if not timed.result.passed:
            raise CannotJudge(f"the solution fails the check {check.title!r}, too: {timed.result.seen}")
        self._slowest = max(self._slowest, timed.seconds)
        return timed.seconds


def may_be_chance(result: CheckResult) -> bool:
    """Did it fail by something that need not happen again? On virtual ranks a wrong value or an exception does."""
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
    """Was its last call ended before it had come to an end by itself, by a time limit or another one?"""
    run = result.run
    return bool(not result.passed and run and run.stopped and not run.stopped.startswith("deadlock"))


def was_not_run(result: CheckResult) -> bool:
    return result.seen.startswith(NOT_RUN)
