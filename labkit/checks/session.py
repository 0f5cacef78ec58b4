"""Checks in a learner's session: on the command line, by `%check`, and in the graded cell."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from labkit.catalogue import Exercise, find
from labkit.checks.check_result import CheckResult, lab_failed
from labkit.checks.guidance import full_marks
from labkit.checks.known_passes import is_known_to_pass, remember_pass
from labkit.checks.ranks import CannotJudge, Ranks, Submission
from labkit.checks.report import Report
from labkit.checks.rubric import Check, Rubric, visible_rubric
from labkit.checks.runner import Progress, run_checks
from labkit.checks.stand_ins import stand_ins
from labkit.lab_failed import LAB_FAILED
from labkit.progress import FailedCheck, record_check
from labkit.text_files import read_text

_latest: dict[str, tuple[Submission, Report]] = {}
"""Module that last passed all checks in this session, and its report, by exercise."""

_WHOSE = {
    "yours": "your module",
    "template": "the template: you have not saved a module yet",
    "solution": "the solution",
}


def check_exercise(
    exercise: Exercise,
    source: str | None = None,
    *,
    cluster: str = "virtual",
    seed: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the visible checks on `source`, or on the current module: the learner's own, else the template.

    The result for the learner's own module is recorded in the workspace. Where no rank can be started, the report says
    so of all checks from there on.

    cluster: `virtual` or `local`. Raises `MissingModule`, `NoRubric`, or ValueError for an unknown cluster.
    """
    whose, origin = "your file", None
    if source is None:
        source, origin = exercise.source()
        whose = _WHOSE[origin]
    title = f"{whose}, on {cluster} ranks"
    rubric, ranks = visible_rubric(exercise), Ranks(cluster)
    judged: list[CheckResult] = []

    def note(check: Check, result: CheckResult | None) -> None:
        if result is not None:
            judged.append(result)
        if progress:
            progress(check, result)

    try:
        chosen = stand_ins(exercise, _own(exercise), _passes)
        title = "; ".join([title, *(note.rstrip(".") for note in chosen.notes)])
        submission = Submission(exercise, source, chosen.modules)
        report = run_checks(rubric, submission, ranks, seed=seed, progress=note, title=title)
        report = _with_faults_of_the_lab(report, rubric, submission, cluster)
    except CannotJudge as reason:
        for check, result in _not_judged(rubric.checks[len(judged) :], reason):
            note(check, result)
        return Report(exercise.name, judged, seed or 0, title)
    if origin == "yours":
        _record(report)
        if report.passed and cluster == "virtual":
            remember_pass(submission)
            _latest[exercise.name] = submission, report
    return report


def _not_judged(checks: Sequence[Check], reason: CannotJudge) -> Iterator[tuple[Check, CheckResult]]:
    """Yield the result of each check that was not run because the lab had failed before; the reason once."""
    first, _, _ = str(reason).partition("\n")
    for number, check in enumerate(checks):
        failed = lab_failed(CheckResult(check.title, check.points, earned=0.0), first, fault=str(reason))
        yield check, replace(failed, seen=f"{LAB_FAILED}, as above", look_at="") if number else failed


def _report_of_the_same_module(exercise: Exercise) -> Report | None:
    """Return the report of `check_exercise` in this session, if its modules passed and have not changed since."""
    if exercise.name not in _latest:
        return None
    submission, report = _latest[exercise.name]
    source, origin = exercise.source()
    now = Submission(exercise, source, stand_ins(exercise, _own(exercise), _passes).modules)
    same = origin == "yours" and now.modules == submission.modules and is_known_to_pass(now)
    return report if same else None


def _with_faults_of_the_lab(report: Report, rubric: Rubric, submission: Submission, cluster: str) -> Report:
    """Find the checks that could not read the submission's results, nor those of the solution, where there is one."""
    path = submission.exercise.paths["solution"]
    doubtful = {result.title for result in report.results if result.fault and result.counts}
    if not doubtful or not path.is_file():
        return report
    checks = [check for check in rubric.checks if check.title in doubtful]
    solution = replace(submission, source=read_text(path))
    again = run_checks(replace(rubric, checks=checks), solution, Ranks(cluster), seed=report.seed)
    faults = {result.title: result.fault for result in again.results if result.fault}
    results = [
        lab_failed(result, _error_type(fault), fault) if (fault := faults.get(result.title)) else result
        for result in report.results
    ]
    return replace(report, results=results)


def _error_type(fault: str) -> str:
    """Return the type of the error at the end of a traceback."""
    return fault.rstrip().splitlines()[-1].partition(":")[0]


def _record(report: Report) -> None:
    """Record points and failures, unless the lab has failed: what was recorded before stays.

    A workspace that cannot be written costs the learner no report.
    """
    if any(result.of_the_lab or result.of_the_machine for result in report.results):
        return
    wrong = [result for result in report.results if result.counts and not (result.passed or result.unwritten)]
    failed = [FailedCheck(result.todo, result.title) for result in wrong if result.todo]
    try:
        record_check(report.exercise, report.earned, report.all_points, failed)
    except OSError as error:
        print(f"the points of {report.exercise} could not be saved in the workspace: {error}", file=sys.stderr)


def _own(exercise: Exercise) -> dict[str, str]:
    """Return the learner's modules of the exercises that this one builds on."""
    paths = {earlier.name: earlier.paths["yours"] for earlier in exercise.builds_on}
    return {name: read_text(path) for name, path in paths.items() if path.is_file()}


@functools.lru_cache(maxsize=64)
def _passed(name: str, texts: tuple[tuple[str, str], ...]) -> bool:
    """Cached by source: a notebook that builds on other exercises asks repeatedly. Passes are known to later
    sessions, too; failures are tried once in each."""
    exercise, (*others, (_, source)) = Exercise(name), texts
    rubric, submission = visible_rubric(exercise), Submission(exercise, source, dict(others))
    if is_known_to_pass(submission):
        return True
    passed = run_checks(rubric, submission, Ranks()).passed
    if passed:
        remember_pass(submission)
    return passed


def _passes(submission: Submission) -> bool:
    return _passed(submission.exercise.name, tuple(submission.modules.items()))


class Grade(float):
    """The points of a graded cell, shown as its report. nbgrader reads the number from the text/plain form."""

    html: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(float(self)), "text/html": self.html}


def grade(name: str) -> Grade:
    """The graded cell: run the visible checks, and return the points, which a notebook shows as the report.

    If the same module has just passed them by `%check`, its report is shown again. Elsewhere than in a notebook the
    report is printed. In grading, the verdict of the hidden checks replaces this one.
    """
    exercise = find(name)
    report = _report_of_the_same_module(exercise) or check_exercise(exercise)
    banner = full_marks.banner(exercise) if report.passed else None
    if not _in_notebook():
        print("\n".join([report.text(), *([banner.text] if banner else [])]))
    points = Grade(report.earned)
    points.html = report._repr_html_() + (banner.html if banner else "")
    return points


def _in_notebook() -> bool:
    """Whether results are sent to a notebook, which shows HTML."""
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")
