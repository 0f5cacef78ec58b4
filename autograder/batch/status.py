"""How the grading of an assignment stands. Submissions are read, nothing is judged and nothing is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from autograder.batch.configured import configured_desk
from autograder.batch.run import ERROR, GRADED, WAITING, Line, left_out_of, wanted, why_nothing, with_hand_marks
from autograder.course import Course
from autograder.desk.store import Verdicts, Work
from autograder.desk.work import Desk


def status_of(course: Course, assignment: str, students: Sequence[str] = ()) -> list[Line]:
    """One line for each notebook of each learner. Raises `CourseFailed`."""
    desk = configured_desk(course.config, logging.Logger("autograder"))
    verdicts = Verdicts(course.folder)
    marked = {(mark.student, mark.notebook) for mark in course.marks(assignment)}
    lines = [_line(desk, verdicts, marked, work) for work in wanted(course, assignment, students)]
    return with_hand_marks(course, assignment, lines)


def _line(desk: Desk, verdicts: Verdicts, marked: set[tuple[str, str]], work: Work) -> Line:
    failure = verdicts.failure(work)
    if failure is not None:
        return Line(work, ERROR, reason=f"{failure.reason}\n({failure.at}, attempts: {failure.attempts})")
    try:
        kept = desk.kept(work, desk.receive(work.student, work.assignment).notebooks[work.notebook])
    except Exception as error:  # a rubric is code, and may be broken in any way
        return Line(work, ERROR, reason=f"{type(error).__name__}: {error}")
    if kept is None or (work.student, work.notebook) not in marked:
        return Line(work, WAITING)
    reports = kept.verdict.reports.values()
    earned, points = sum(report.marks for report in reports), sum(report.all_points for report in reports)
    why = "" if earned else why_nothing(kept.verdict)
    return Line(work, GRADED, earned, points, seconds=kept.seconds, why=why, left_out=left_out_of(kept.verdict))
