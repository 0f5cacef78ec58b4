"""Checks in a learner's session: on the command line, by `%check`, and in the graded cell."""

from __future__ import annotations

import functools

from labkit.catalogue import Exercise, find
from labkit.checks.ranks import Ranks, Submission
from labkit.checks.report import Report
from labkit.checks.rubric import visible_rubric
from labkit.checks.runner import Progress, run_checks
from labkit.checks.stand_ins import stand_ins

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

    cluster: `virtual` or `local`. Raises `MissingModule`, `NoRubric`, or ValueError for an unknown cluster.
    """
    whose = "your file"
    if source is None:
        source, origin = exercise.source()
        whose = _WHOSE[origin]
    chosen = stand_ins(exercise, _own(exercise), _passes)
    submission = Submission(exercise, source, chosen.modules)
    title = "; ".join([f"{whose}, on {cluster} ranks", *(note.rstrip(".") for note in chosen.notes)])
    return run_checks(visible_rubric(exercise), submission, Ranks(cluster), seed=seed, progress=progress, title=title)


def _own(exercise: Exercise) -> dict[str, str]:
    """The learner's modules of the exercises that this one builds on."""
    paths = {earlier.name: earlier.paths["yours"] for earlier in exercise.builds_on}
    return {name: path.read_text() for name, path in paths.items() if path.is_file()}


@functools.lru_cache(maxsize=64)
def _passed(name: str, texts: tuple[tuple[str, str], ...]) -> bool:
    """Cached by source: a notebook that builds on other exercises asks repeatedly."""
    exercise, (*others, (_, source)) = Exercise(name), texts
    return run_checks(visible_rubric(exercise), Submission(exercise, source, dict(others)), Ranks()).passed


def _passes(submission: Submission) -> bool:
    return _passed(submission.exercise.name, tuple(submission.modules.items()))


def grade(name: str) -> float:
    """The graded cell: run the visible checks, show the report, return the points.

    In grading, the verdict of the hidden checks replaces this one.
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
