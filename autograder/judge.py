"""The judge: runs an exercise's hidden rubric in this process, on ranks that live in a sandbox.

The learner's module goes in as text. Messages come out, which the scheduler in this process routes one by one and
counts itself, and results in the wire format; nothing of it is unpickled, imported or trusted.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace

from autograder.measurable import left_out
from autograder.retries import Retries, TimedResult, may_be_chance
from autograder.sandbox import Sandbox
from autograder.submission_sandbox import SubmissionSandbox
from labkit.catalogue import Exercise
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
from labkit.checks.stand_ins import StandIns, stand_ins

TIMEOUT = 20.0
"""Seconds for one call on ranks, by the sandbox's clock; a quarter after one call hung, no more calls after two."""
BUDGET = 600.0
"""Seconds for all calls of one submission; checks that are run again have the same amount once more."""
_SEED_BITS = 62
"""Bits of the seed for inputs, so many that a rank cannot look up the seed from its part of the inputs."""


class BrokenRubric(RuntimeError):
    """A rubric is unusable. It costs no marks: grading the submission fails."""


def hidden_rubric(exercise: Exercise) -> Rubric:
    """Return the rubric that grades `exercise`, from the course tree or else from the installed package.

    Raises `NoRubric`, or `BrokenRubric` for a file that Python cannot run.
    """
    path = exercise.folder("autograder") / "rubric.py"
    try:
        return load_rubric(exercise, path)
    except NoRubric:
        raise
    except Exception as error:  # a rubric is code and may raise anything
        raise BrokenRubric(f"the rubric {path} cannot be used: {type(error).__name__}: {error}") from error


class Judge:
    """Judges the modules of one submission in its own sandbox. Use it in a `with` statement.

    timeout: seconds for one call on ranks; budget: seconds for all of them. Failures that are not the submission's
    fault raise `BrokenRubric`, `CannotJudge` or `SandboxUnavailable`.
    """

    def __init__(self, sandbox: Sandbox, timeout: float = TIMEOUT, budget: float = BUDGET) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._budget, self._budget_for_retries = Budget(budget), Budget(budget)
        self._submission_sandbox = SubmissionSandbox(sandbox)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._submission_sandbox.close()

    def stand_ins(self, exercise: Exercise, own: Mapping[str, str]) -> StandIns:
        """Return the modules that `exercise` gets for the exercises that it builds on.

        own: the learner's modules for other exercises, by full name. A module that passes its visible checks is used;
        any other is replaced by the solution.
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
        """Judge the module text `source`; `others` are the modules that it builds on, by full name.

        checks: names of the checks to run; all when empty. Checks that this machine cannot measure are left out.
        once: run each check once, all of them on the same reusable ranks, and believe failures. The result is not a
        mark, because a check may have failed by chance or through leftovers of another check; it suffices to show that
        a mutant fails the checks that it should.
        """
        rubric = hidden_rubric(exercise)
        if checks:
            rubric = replace(rubric, checks=[check for check in rubric.checks if check.name in checks])
        missing = left_out(rubric, self._sandbox)
        judged = replace(rubric, checks=[check for check in rubric.checks if check.name not in missing])
        if not judged.checks:
            raise CannotJudge(f"nothing of {exercise.name} can be judged here: {'; '.join(set(missing.values()))}")
        submission = Submission(exercise, source, others or {})
        report = self._run_once(judged, submission) if once else self._judged(judged, submission)
        judged_results = iter(report.results)
        results = [
            CheckResult(check.title, check.points, 0.0, skipped=missing[check.name])
            if check.name in missing
            else next(judged_results)
            for check in rubric.checks
        ]
        return replace(report, results=results)

    def _run_once(self, rubric: Rubric, submission: Submission) -> Report:
        self._submission_sandbox.keeps_ranks = True
        return run_checks(rubric, submission, self._ranks(Patience(self._timeout, self._budget)), seed=_seed())

    def _judged(self, rubric: Rubric, submission: Submission) -> Report:
        report = self._run(rubric, submission)
        skipped = [f"{result.title!r}: {result.skipped}" for result in report.results if result.skipped]
        if skipped:
            raise BrokenRubric(f"{rubric.path}: cannot be judged in a sandbox: {'; '.join(skipped)}")
        _require_a_working_lab(report)
        if any(result.fault and not result.of_the_machine for result in report.results):
            # a check raised unexpectedly: the submission's fault if the solution passes
            self._try_solution(rubric, submission)
        decided = self._retried(rubric, submission, report)
        _require_a_working_lab(decided)
        return decided

    def _retried(self, rubric: Rubric, submission: Submission, report: Report) -> Report:
        """Return the report after re-running checks that may have failed by chance."""
        doubtful = [may_be_chance(result) for result in report.results]
        if not any(doubtful):
            return report

        def run_again(check: Check, timeout: float) -> CheckResult:
            self.close()
            part, patience = replace(rubric, checks=[check]), Patience(timeout, self._budget_for_retries)
            return self._run_on(part, submission, report.seed, keep=False, patience=patience).results[0]

        def run_solution(check: Check) -> TimedResult:
            self.close()
            part, patience = replace(rubric, checks=[check]), Patience(self._timeout)
            solution = replace(submission, source=rubric.exercise.source("solution")[0])
            solution_report = other._run_on(part, solution, report.seed, keep=False, patience=patience)
            return TimedResult(solution_report.results[0], patience.longest)

        retries = Retries(run_again, run_solution, self._timeout)
        with Judge(self._sandbox) as other:
            decided = [
                retries.decide(check, result) if in_doubt else result
                for check, result, in_doubt in zip(rubric.checks, report.results, doubtful, strict=True)
            ]
        return replace(report, results=decided)

    def _passes(self, submission: Submission) -> bool:
        """Return whether the submission passes the visible checks, which also run in the sandbox."""
        rubric = visible_rubric(submission.exercise)
        report = self._run(rubric, submission)
        if any(not (result.passed or result.skipped or may_be_chance(result)) for result in report.results):
            return False
        if not submission.exercise.paths["solution"].is_file():
            return report.passed
        return self._retried(rubric, submission, report).passed

    def _run(self, rubric: Rubric, submission: Submission) -> Report:
        """Judge on ranks that are reused within one check; judge failures again on fresh ranks.

        So leftovers of a submission in Python or torch cost it no marks that it would have earned without them. Nor
        does a second try earn marks by luck: a check that fails and then passes must pass twice, each time in a fresh
        sandbox.
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
        self._submission_sandbox.keeps_ranks = keep

        def at_check(check: Check, result: CheckResult | None) -> None:
            # a check must not see what another left in the ranks
            self._submission_sandbox.forget()

        ranks = self._ranks(patience or Patience(self._timeout, self._budget))
        return run_checks(rubric, submission, ranks, seed=seed, progress=at_check)

    def _ranks(self, patience: Patience) -> Ranks:
        return Ranks(
            self._submission_sandbox.virtual,
            processes=self._submission_sandbox.processes,
            network_bytes=self._submission_sandbox.network_bytes,
            memory_beyond=self._submission_sandbox.memory_beyond,
            patience=patience,
            clock=self._submission_sandbox.seconds,
            renew=self._submission_sandbox.forget,
        )

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


def _require_a_working_lab(report: Report) -> None:
    """Raise `CannotJudge` if a check has ended in an error of the lab: no submission gains or loses marks by it."""
    failed = [result for result in report.results if result.of_the_lab]
    if failed:
        faults = "\n".join(f"{result.title}\n{result.fault}" for result in failed)
        raise CannotJudge(f"{failed[0].title!r}: {failed[0].seen}; no marks are given until it works\n{faults}")


def _seed() -> int:
    return 1 + secrets.randbits(_SEED_BITS)


def _has_failed(result: CheckResult) -> bool:
    return not (result.passed or result.skipped or result.seen.startswith(NOT_RUN))


def nothing_earned(rubric: Rubric) -> Report:
    """Return the report for a submission that need not be run: no module, or the unchanged template."""
    results = [CheckResult(check.title, check.points, earned=0.0) for check in rubric.checks]
    return Report(rubric.exercise.name, results, seed=0)
