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
from autograder.sandbox import Sandbox
from labkit.checks import (
    Budget,
    CannotJudge,
    Check,
    CheckResult,
    NoRubric,
    Patience,
    ProcessRun,
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
"""Seconds of wall-clock time for one call on ranks; after one that hung, a quarter; after two, none are made."""
BUDGET = 600.0
"""Seconds of wall-clock time for all calls of one submission."""
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
        self._budget = Budget(budget)
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
        self, exercise: Exercise, source: str, others: Mapping[str, str] | None = None, checks: Collection[str] = ()
    ) -> Report:
        """Marks for the module text `source`; `others` are the modules that it builds on, by full name.

        checks: names of those that are wanted; without any, all of them. What this machine cannot measure is left out.
        """
        rubric = hidden_rubric(exercise)
        if checks:
            rubric = replace(rubric, checks=[check for check in rubric.checks if check.name in checks])
        missing = left_out(rubric, self._sandbox)
        judged = replace(rubric, checks=[check for check in rubric.checks if check.name not in missing])
        if not judged.checks:
            raise CannotJudge(f"nothing of {exercise.name} can be judged here: {'; '.join(set(missing.values()))}")
        report = self._judged(judged, Submission(exercise, source, others or {}))
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
        """With what came of running those checks again that may have failed by chance.

        Each is run on the same draw in a fresh sandbox. What fails again has failed, and so have others that ended in
        the same way. What passes is run a third time, and that decides: a submission that works in two of three runs
        has its marks, whether the machine was at fault or not.
        """
        failed_again: set[tuple[str, bool]] = set()
        results = []
        for check, result in zip(rubric.checks, report.results, strict=True):
            not_run = result.seen.startswith(NOT_RUN)
            ending = result.stopped, result.of_the_machine
            if not _may_be_chance(result) or ending in failed_again or (not_run and failed_again):
                results.append(result)
                continue

            def run_again(check: Check = check) -> CheckResult:
                self.close()
                return self._run_on(replace(rubric, checks=[check]), submission, report.seed, keep=False).results[0]

            second = run_again()
            if not second.passed:
                if not failed_again or second.of_the_machine:
                    self._require_the_solution(rubric, check, submission, report.seed)
                failed_again.add(ending)
                results.append(replace(result, retried="" if not_run else "failed in a fresh sandbox, too"))
            elif not_run or (second := run_again()).passed:
                told = "run later, in a fresh sandbox" if not_run else "failed at first, then passed twice: it counts"
                results.append(replace(second, retried=told))
            else:
                results.append(replace(second, retried="failed twice and passed once: it does not count"))
        return replace(report, results=results)

    def _require_the_solution(self, rubric: Rubric, check: Check, submission: Submission, seed: int) -> None:
        """Raises `CannotJudge` when the solution does not pass this check either, here and now: it is the machine."""
        solution = replace(submission, source=rubric.exercise.source("solution")[0])
        with Judge(self._sandbox, self._timeout) as other:
            found = other._run(replace(rubric, checks=[check]), solution, seed).results[0]
        if not found.passed:
            raise CannotJudge(f"the solution fails the check {check.title!r}, too: {found.seen}")

    def _passes(self, submission: Submission) -> bool:
        """Does it pass the checks that its author could see? They run in the sandbox, too."""
        return self._run(visible_rubric(submission.exercise), submission).passed

    def _run(self, rubric: Rubric, submission: Submission, seed: int | None = None) -> Report:
        """Judge on ranks that are kept for the calls of one check; what fails there is judged again on fresh ones.

        So nothing that a submission has left in Python or torch costs it marks which it would have earned alone. Nor
        does a second try earn any by luck: what fails and then passes must pass twice, each time in a fresh sandbox.
        """
        seed = 1 + secrets.randbits(_SEED_BITS) if seed is None else seed
        report = self._run_on(rubric, submission, seed, keep=True)
        results = list(report.results)
        doubtful = [i for i, result in enumerate(results) if _has_failed(result) and not _may_be_chance(result)]
        for _ in range(2):
            if doubtful:
                self.close()
                part = replace(rubric, checks=[rubric.checks[i] for i in doubtful])
                again = self._run_on(part, submission, report.seed, keep=False)
                for i, result in zip(doubtful, again.results, strict=True):
                    results[i] = result
                doubtful = [i for i in doubtful if results[i].passed]
        return replace(report, results=results)

    def _run_on(self, rubric: Rubric, submission: Submission, seed: int, keep: bool) -> Report:
        self._enclosed.keeps_ranks = keep

        def at_check(check: Check, result: CheckResult | None) -> None:
            # what one check has left in the ranks is not there for another
            self._enclosed.forget()

        ranks = Ranks(
            self._enclosed.virtual,
            processes=self._enclosed.processes,
            network_bytes=self._enclosed.network_bytes,
            memory_peak=self._enclosed.memory_peak,
            patience=Patience(self._timeout, self._budget),
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


def _has_failed(result: CheckResult) -> bool:
    return not (result.passed or result.skipped or result.seen.startswith(NOT_RUN))


def _may_be_chance(result: CheckResult) -> bool:
    """Did it fail by something that need not happen again? On virtual ranks a wrong value or an exception does."""
    run = result.run
    if result.passed or result.skipped:
        return False
    if result.of_the_machine:
        return True
    if result.seen.startswith(NOT_RUN) or isinstance(run, ProcessRun):
        return True
    if run is None:
        return False
    ended_by_itself = any(rank.exit not in (0, None) and (e := rank.error) and e.is_mere_end for rank in run.ranks)
    return ended_by_itself or bool(run.stopped and not run.stopped.startswith("deadlock"))


def nothing_earned(rubric: Rubric) -> Report:
    """A report for what need not be run: no module, or the untouched template."""
    results = [CheckResult(check.title, check.points, earned=0.0) for check in rubric.checks]
    return Report(rubric.exercise.name, results, seed=0)
