"""Checks in a learner's session: at the shell, by `%check`, and as the graded cell."""

from __future__ import annotations

from labkit.checks.ranks import Ranks, Submission
from labkit.checks.report import Report
from labkit.checks.rubric import visible_rubric
from labkit.checks.runner import Progress, run_checks
from labkit.exercises import Exercise, find

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
    """Run the visible checks on `source`, or on the module under work: the learner's own, else the template.

    cluster: `virtual` or `local`. Raises `MissingModule`, `NoRubric`, or ValueError for an unknown cluster.
    """
    whose = "your file"
    if source is None:
        source, origin = exercise.source()
        whose = _WHOSE[origin]
    submission = Submission(exercise, source)
    title = f"{whose}, on {cluster} ranks"
    return run_checks(visible_rubric(exercise), submission, Ranks(cluster), seed=seed, progress=progress, title=title)


def grade(name: str) -> float:
    """The graded cell: run the visible checks, show the report, return the points.

    The hidden checks are the grader's: when a submission is graded, their verdict takes this one's place.
    """
    report = check_exercise(find(name))
    _show(report)
    return report.earned


def _show(report: Report) -> None:
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(report.text())
    else:
        display(report)
