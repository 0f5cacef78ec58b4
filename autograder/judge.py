"""The judge: runs an exercise's hidden rubric here, on ranks that live in a sandbox.

The learner's module goes in as text. What comes out are messages, which the scheduler in this process routes one by one
and so counts itself, and results in the wire format; none of it is unpickled, imported or believed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from autograder.enclosed import Enclosed
from autograder.measurable import left_out
from autograder.retries import Retries, Timed, may_be_chance
from autograder.sandbox import Sandbox
from labkit.checks import (
    Budget,
    CannotJudge,
    Check,
    CheckResult,
    NoRubric,
    Patience,
    Ranks,
    Report,
    Rubric,
    Submission,
    load_rubric,
    run_checks,
    visible_rubric,
)
from labkit.checks.patience import NOT_RUN
from labkit.checks.stand_ins import Standing, stand_ins
from labkit.exercises import Exercise, root

TIMEOUT = 20.0
"""Seconds for one call on ranks, on the sandbox's clock; after one that hung, a quarter; after two, none are made."""
BUDGET = 600.0
"""Seconds for all calls of one submission, and as much again for those of checks that are run again."""
_SEED_BITS = 62
"""Of what the inputs are drawn from: nobody finds it in a table by the part of the inputs that a rank is given."""


class BrokenRubric(RuntimeError):
    """A rubric cannot be used as it stands. Nobody's marks: the grading of the submission fails."""


def hidden_rubric(exercise: Exercise) -> Rubric:
    """The rubric that grades `exercise`, of the course tree, else of the installed package.

    Raises `NoRubric`, and `BrokenRubric` for a file that Python cannot run.
    """
    in_course = root() / "autograder" / "rubrics" / exercise.filename
    installed = Path(__file__).parent / "rubrics" / exercise.filename
    path = in_course if in_course.is_file() else installed
    try:
        return load_rubric(exercise, path)
    except NoRubric:
        raise
    except Exception as error:  # a rubric is code, and may be broken in any way
        raise BrokenRubric(f"the rubric {path} cannot be used: {type(error).__name__}: {error}") from error


class Judge:
    """Judges the modules of one submission, in a sandbox of its own: use it in a `with` statement.

    timeout: seconds for one call on ranks; budget: for all of them. What goes wrong by nobody's doing is raised:
    `BrokenRubric`, `CannotJudge`, `SandboxUnavailable`.
    """

    def __init__(self, sandbox: Sandbox, timeout: float = TIMEOUT, budget: float = BUDGET) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._budget, self._budget_for_retries = Budget(budget), Budget(budget)
        self._enclosed = Enclosed(sandbox)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox and all that is in it."""
        self._enclosed.close()

    def stand_ins(self, exercise: Exercise, own: Mapping[str, str]) -> Standing:
        """What `exercise` gets for those that it builds on.

        own: what the learner wrote for other exercises, by full name. A module that passes its visible checks is used;
        for any other the solution stands in.
        """
        return stand_ins(exercise, own, self._passes)

    def judge(
        self,
        exercise: Exercise,
        source: str,
        others: Mapping[str, str] | None = None,
        checks: Collection[str] = (),
        once: bool = False,
    ) -> Report:
        """Marks for the module text `source`; `others` are the modules that it builds on, by full name.

        checks: names of those that are wanted; without any, all of them. What this machine cannot measure is left out.
        once: each check is run once, on fresh ranks for each call, and what fails is believed. That is no mark, since
        it may have failed by chance; it is enough to see that a mutant loses what it should.
        """
        rubric = hidden_rubric(exercise)
        if checks:
            rubric = replace(rubric, checks=[check for check in rubric.checks if check.name in checks])
        missing = left_out(rubric, self._sandbox)
        judged = replace(rubric, checks=[check for check in rubric.checks if check.name not in missing])
        if not judged.checks:
            raise CannotJudge(f"nothing of {exercise.name} can be judged here: {'; '.join(set(missing.values()))}")
        submission = Submission(exercise, source, others or {})
        report = self._run_on(judged, submission, _seed(), keep=False) if once else self._judged(judged, submission)
        found = iter(report.results)
        results = [
            CheckResult(check.title, check.points, 0.0, skipped=missing[check.name])
            if check.name in missing
            else next(found)
            for check in rubric.checks
        ]
        return replace(report, results=results)

    def _judged(self, rubric: Rubric, submission: Submission) -> Report:
        report = self._run(rubric, submission)
        skipped = [f"{result.title!r}: {result.skipped}" for result in report.results if result.skipped]
        if skipped:
            raise BrokenRubric(f"{rubric.path}: cannot be judged in a sandbox: {'; '.join(skipped)}")
        if any(result.fault and not result.of_the_machine for result in report.results):
            # a check met what it did not foresee: the submission's doing, provided that the solution passes
            self._try_solution(rubric, submission)
        return self._retried(rubric, submission, report)

    def _retried(self, rubric: Rubric, submission: Submission, report: Report) -> Report:
        """With what came of running those checks again that may have failed by chance."""
        doubtful = [may_be_chance(result) for result in report.results]
        if not any(doubtful):
            return report

        def run_again(check: Check, timeout: float) -> CheckResult:
            self.close()
            part, patience = replace(rubric, checks=[check]), Patience(timeout, self._budget_for_retries)
            return self._run_on(part, submission, report.seed, keep=False, patience=patience).results[0]

        def run_solution(check: Check) -> Timed:
            self.close()
            part, patience = replace(rubric, checks=[check]), Patience(self._timeout)
            solution = replace(submission, source=rubric.exercise.source("solution")[0])
            found = other._run_on(part, solution, report.seed, keep=False, patience=patience)
            return Timed(found.results[0], patience.longest)

        retries = Retries(run_again, run_solution, self._timeout)
        with Judge(self._sandbox) as other:
            decided = [
                retries.decide(check, result) if in_doubt else result
                for check, result, in_doubt in zip(rubric.checks, report.results, doubtful, strict=True)
            ]
        return replace(report, results=decided)

    def _passes(self, submission: Submission) -> bool:
        """Does it pass the checks that its author could see? They run in the sandbox, too."""
        rubric = visible_rubric(submission.exercise)
        report = self._run(rubric, submission)
        if any(not (result.passed or result.skipped or may_be_chance(result)) for result in report.results):
            return False
        if not submission.exercise.paths["solution"].is_file():
            return report.passed
        return self._retried(rubric, submission, report).passed

    def _run(self, rubric: Rubric, submission: Submission) -> Report:
        """Judge on ranks that are kept for the calls of one check; what fails there is judged again on fresh ones.

        So nothing that a submission has left in Python or torch costs it marks which it would have earned alone. Nor
        does a second try earn any by luck: what fails and then passes must pass twice, each time in a fresh sandbox.
        """
        report = self._run_on(rubric, submission, _seed(), keep=True)
        results = list(report.results)
        doubtful = [i for i, result in enumerate(results) if _has_failed(result) and not may_be_chance(result)]
        for _ in range(2):
            if doubtful:
                self.close()
                part = replace(rubric, checks=[rubric.checks[i] for i in doubtful])
                again = self._run_on(part, submission, report.seed, keep=False)
                for i, result in zip(doubtful, again.results, strict=True):
                    results[i] = result
                doubtful = [i for i in doubtful if results[i].passed]
        return replace(report, results=results)

    def _run_on(
        self, rubric: Rubric, submission: Submission, seed: int, keep: bool, patience: Patience | None = None
    ) -> Report:
        self._enclosed.keeps_ranks = keep

        def at_check(check: Check, result: CheckResult | None) -> None:
            # what one check has left in the ranks is not there for another
            self._enclosed.forget()

        ranks = Ranks(
            self._enclosed.virtual,
            processes=self._enclosed.processes,
            network_bytes=self._enclosed.network_bytes,
            memory_beyond=self._enclosed.memory_beyond,
            patience=patience or Patience(self._timeout, self._budget),
            clock=self._enclosed.seconds,
            renew=self._enclosed.forget,
        )
        return run_checks(rubric, submission, ranks, seed=seed, progress=at_check)

    def _try_solution(self, rubric: Rubric, submission: Submission) -> None:
        solution = rubric.exercise.source("solution")[0]
        with Judge(self._sandbox, self._timeout) as other:
            report = other._run(rubric, replace(submission, source=solution))
        if not report.passed:
            lost = [result for result in report.results if not result.passed]
            faults = "\n".join(result.fault or result.text() for result in lost)
            if all(result.of_the_machine for result in lost):
                raise CannotJudge(f"the solution cannot be judged either\n{faults}")
            raise BrokenRubric(f"{rubric.path}: the solution does not get full marks\n{faults}")


def _seed() -> int:
    return 1 + secrets.randbits(_SEED_BITS)


def _has_failed(result: CheckResult) -> bool:
    return not (result.passed or result.skipped or result.seen.startswith(NOT_RUN))


def nothing_earned(rubric: Rubric) -> Report:
    """A report for what need not be run: no module, or the untouched template."""
    results = [CheckResult(check.title, check.points, earned=0.0) for check in rubric.checks]
    return Report(rubric.exercise.name, results, seed=0)
