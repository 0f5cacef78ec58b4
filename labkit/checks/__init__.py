"""Writing and running rubrics.

For the author of a rubric: `check`, `expect`, `is_close`, `Args`, `group_of`, `reduce_op`, `transposed`, `work`,
`Alteration`, `CheckFailed`, `NotMeasurable`. rubric.py describes the format of a rubric's file.

For running one:

    exercise = catalogue.find("ring_allreduce")
    rubric = visible_rubric(exercise)                          # or load_rubric(exercise, path) for a hidden one
    submission = Submission(exercise, source_text)
    report = run_checks(rubric, submission, Ranks("virtual"))  # or Ranks(make_cluster, timeout=...) with your own
    report.earned, report.points, report.text(), report._repr_html_(), report.to_json()
    report.without_details()                                   # what a learner may see of hidden checks
    report.results[0].run, report.results[0].picture           # for pictures; picture.wrong[rank][chunk]

`check_exercise(exercise)` does all this for the learner's module (`%check`), `grade("NAME")` is the graded cell, and
`guidance.hints.next_hint(exercise)` reveals one more hint.
"""

from labkit.checks.check_result import CheckResult
from labkit.checks.draw import Draw
from labkit.checks.expectations import CheckFailed, Expectation, NotMeasurable, WrongChunks, expect, is_close
from labkit.checks.patience import Budget, Patience
from labkit.checks.ranks import (
    Args,
    CannotJudge,
    Inputs,
    MakeCluster,
    ProcessRun,
    Ranks,
    RankSet,
    Reference,
    Submission,
)
from labkit.checks.report import Report
from labkit.checks.rubric import Check, NoRubric, Rubric, check, load_rubric, visible_rubric
from labkit.checks.runner import Progress, run_checks
from labkit.checks.session import check_exercise, grade
from labkit.clusters.arguments import group_of, reduce_op, transposed, work
from labkit.clusters.virtual import Alteration

__all__ = [
    "Alteration",
    "Args",
    "Budget",
    "CannotJudge",
    "Check",
    "CheckFailed",
    "CheckResult",
    "Draw",
    "Expectation",
    "Inputs",
    "MakeCluster",
    "NoRubric",
    "NotMeasurable",
    "Patience",
    "ProcessRun",
    "Progress",
    "RankSet",
    "Ranks",
    "Reference",
    "Report",
    "Rubric",
    "Submission",
    "WrongChunks",
    "check",
    "check_exercise",
    "expect",
    "grade",
    "group_of",
    "is_close",
    "load_rubric",
    "reduce_op",
    "run_checks",
    "transposed",
    "visible_rubric",
    "work",
]
