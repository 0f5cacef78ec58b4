"""All marks and due dates of a gradebook, in two queries: nbgrader's own properties take one for each submission."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbgrader.api import Assignment, Grade, Notebook, SubmittedAssignment, SubmittedNotebook
from sqlalchemy import Integer, and_, cast, create_engine, func, inspect, select
from sqlalchemy.orm import Session


@dataclass(frozen=True)
class NotebookMarks:
    """Marks of one learner's notebook."""

    score: float
    points: float
    is_judged: bool
    """Whether each graded cell has a mark."""
    by_hand: bool
    """Whether nbgrader asks for a look by hand."""


@dataclass(frozen=True)
class GradebookMarks:
    """Marks and dates of a gradebook. Times are in UTC, without a time zone, as nbgrader keeps them."""

    marks: dict[tuple[str, str, str], NotebookMarks] = field(default_factory=dict)
    """Marks by learner, assignment and notebook."""
    handed_in: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """Times of graded submissions, by learner and assignment."""
    extended: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """Due dates with an extension, by learner and assignment."""
    due: dict[str, datetime] = field(default_factory=dict)
    """Due dates by assignment."""

    def due_for(self, learner: str, assignment: str) -> datetime | None:
        """Return a learner's due date."""
        return self.extended.get((learner, assignment)) or self.due.get(assignment)


def gradebook_marks(path: Path) -> GradebookMarks:
    """Read a gradebook, `gradebook.db` of a course; empty if there is none yet."""
    if not path.is_file():
        return GradebookMarks()
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True))
    try:
        if not inspect(engine).has_table(Grade.__tablename__):  # the file is made first
            return GradebookMarks()
        with Session(engine) as session:
            return _read(session)
    finally:
        engine.dispose()


def _read(session: Session) -> GradebookMarks:
    result = GradebookMarks()
    submitted = (
        select(
            Assignment.name,
            Assignment.duedate,
            SubmittedAssignment.student_id,
            SubmittedAssignment.timestamp,
            SubmittedAssignment.extension,
        )
        .select_from(Assignment)
        .outerjoin(SubmittedAssignment, SubmittedAssignment.assignment_id == Assignment.id)
    )
    for assignment, due, learner, handed_in, extension in session.execute(submitted):
        if due is not None:
            result.due[assignment] = due
            if extension is not None:
                result.extended[learner, assignment] = due + extension
        if handed_in is not None:
            result.handed_in[learner, assignment] = handed_in
    unmarked = and_(Grade.auto_score.is_(None), Grade.manual_score.is_(None))
    grades = (
        select(
            SubmittedAssignment.student_id,
            Assignment.name,
            Notebook.name,
            func.sum(Grade.score),
            func.sum(Grade.max_score.expression),
            func.sum(cast(unmarked, Integer)),
            func.max(cast(Grade.needs_manual_grade, Integer)),
        )
        .select_from(Grade)
        .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
        .join(Notebook, SubmittedNotebook.notebook_id == Notebook.id)
        .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        .group_by(SubmittedAssignment.student_id, Assignment.name, Notebook.name)
    )
    for learner, assignment, notebook, score, points, without, by_hand in session.execute(grades):
        marks = NotebookMarks(score or 0.0, points or 0.0, not without, bool(by_hand))
        result.marks[learner, assignment, notebook] = marks
    return result
