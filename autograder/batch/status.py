"""Grading status of an assignment. Submissions are read; nothing is judged and nothing is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from autograder.batch.configured import configured_grader
from autograder.batch.run import (
    ERROR,
    GRADED,
    WAITING,
    NotebookSummary,
    left_out_of,
    wanted,
    why_nothing,
    with_hand_marks,
)
from autograder.course_folder import Course
from autograder.verdicts.grader import NotebookGrader
from autograder.verdicts.store import GradingTask, VerdictStore
from labkit.lab_failed import lab_failed


def status_of(course: Course, assignment: str, students: Sequence[str] = ()) -> list[NotebookSummary]:
    """Return one line for each notebook of each learner. Raises `CourseFailed`."""
    grader = configured_grader(course.config, logging.Logger("autograder"))
    verdicts = VerdictStore(course.folder)
    marked = {(mark.student, mark.notebook) for mark in course.marks(assignment)}
    lines = [_line(grader, verdicts, marked, work) for work in sorted(wanted(course, assignment, students))]
    return with_hand_marks(course, assignment, lines)


def _line(
    grader: NotebookGrader, verdicts: VerdictStore, marked: set[tuple[str, str]], work: GradingTask
) -> NotebookSummary:
    failure = verdicts.failure(work)
    if failure is not None:
        return NotebookSummary(work, ERROR, reason=f"{failure.reason}\n({failure.at}, attempts: {failure.attempts})")
    try:
        intake = grader.receive(work.student, work.assignment)
        stored = grader.stored(work, intake.notebooks[work.notebook])
    except Exception as error:  # a rubric is code and may raise anything
        return NotebookSummary(work, ERROR, reason=lab_failed(f"{type(error).__name__}: {error}"))
    if stored is None or (work.student, work.notebook) not in marked:
        return NotebookSummary(work, WAITING)
    reports = stored.verdict.reports.values()
    earned, points = sum(report.marks for report in reports), sum(report.all_points for report in reports)
    why = "" if earned else why_nothing(stored.verdict)
    return NotebookSummary(
        work,
        GRADED,
        earned,
        points,
        seconds=stored.seconds,
        why=why,
        time_problem=intake.time_problem,
        left_out=left_out_of(stored.verdict),
    )
