"""Grade exports: a table, or a file that Canvas or Moodle imports. `labkit grades` and `nbgrader export`.

As in nbgrader, a learner without a submission has 0. A submission without a mark, because it was not graded yet or the
grader failed, gives an empty cell: not a 0, and learning platforms leave such a cell unchanged.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Assignment, Gradebook, MissingEntry, Student
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExportPlugin

from autograder.verdicts.store import GradingTask, VerdictStore

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of texts that a spreadsheet would run as a formula."""


@dataclass(frozen=True)
class Learner:
    """A learner in the gradebook."""

    id: str
    last_name: str
    first_name: str
    email: str
    lms_id: str
    """The learner's id on the learning platform, if it was entered."""


@dataclass(frozen=True)
class Grade:
    """One learner's grade for one assignment. Marks are None where there are none yet."""

    learner: Learner
    assignment: str
    due: str
    points: float
    handed_in: str
    earned: float | None
    penalty: float = 0.0

    @property
    def score(self) -> float | None:
        return None if self.earned is None else max(0.0, self.earned - self.penalty)


class Table(ExportPlugin):  # type: ignore[misc]  # nbgrader has no types
    """All grades, one line for each learner and assignment, with nbgrader's columns."""

    def export(self, gradebook: Gradebook) -> None:
        """Write to `self.to`, by default grades.csv."""
        with Path(self.to or "grades.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(self.rows(self.grades(gradebook)))

    def rows(self, grades: Iterable[Grade]) -> list[list[str]]:
        """Return the file's rows."""
        columns = ["assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"]
        rows = [[*columns, "raw_score", "late_submission_penalty", "score", "max_score"]]
        for grade in grades:
            learner = grade.learner
            who = map(_text, (learner.id, learner.last_name, learner.first_name, learner.email))
            marks = map(_marks, (grade.earned, grade.penalty, grade.score, grade.points))
            rows.append([grade.assignment, grade.due, grade.handed_in, *who, *marks])
        return rows

    def grades(self, gradebook: Gradebook) -> list[Grade]:
        """Return the grades of the selected learners and assignments."""
        return [
            self._grade(gradebook, assignment, student)
            for assignment in gradebook.assignments
            if not self.assignment or assignment.name in self.assignment
            for student in sorted(gradebook.students, key=lambda student: str(student.id))
            if not self.student or student.id in self.student
        ]

    def _grade(self, gradebook: Gradebook, assignment: Assignment, student: Student) -> Grade:
        course = Path(CourseDirectory(config=self.config).root)
        names = (student.last_name, student.first_name, student.email, student.lms_user_id)
        learner = Learner(student.id, *(name or "" for name in names))
        common = (learner, assignment.name, str(assignment.duedate or ""), assignment.max_score)
        try:
            submission = gradebook.find_submission(assignment.name, student.id)
        except MissingEntry:
            waits = (course / "submitted" / student.id / assignment.name).exists()
            return Grade(*common, handed_in="", earned=None if waits else 0.0)
        handed_in = str(submission.timestamp or "")
        grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
        works = [GradingTask(student.id, assignment.name, notebook.name) for notebook in assignment.notebooks]
        failed = any(VerdictStore(course).failure(work) for work in works)
        if failed or any(grade.auto_score is None and grade.manual_score is None for grade in grades):
            return Grade(*common, handed_in, earned=None)
        return Grade(*common, handed_in, submission.score, submission.late_submission_penalty or 0.0)


class Canvas(Table):
    """File for Canvas, Grades > Import. Learners are identified by login, or by `lms_user_id` if known."""

    def rows(self, grades: Iterable[Grade]) -> list[list[str]]:
        """Return rows with a column for each assignment; the second row holds the points possible."""
        points, learners = _by_learner(grades)
        rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *points]]
        rows.append(["Points Possible", "", "", "", "", *map(_marks, points.values())])
        for learner, scores in learners:
            name = ", ".join(part for part in (learner.last_name, learner.first_name) if part) or learner.id
            rows.append([_text(name), _text(learner.lms_id), "", _text(learner.id), "", *scores])
        return rows


class Moodle(Table):
    """File for Moodle, Grades > Import > CSV file; map `Username` to the user name there."""

    def rows(self, grades: Iterable[Grade]) -> list[list[str]]:
        """Return rows with a column for each assignment."""
        points, learners = _by_learner(grades)
        rows = [["Username", "ID number", "First name", "Last name", "Email address", *points]]
        for learner, scores in learners:
            who = (learner.id, learner.lms_id, learner.first_name, learner.last_name, learner.email)
            rows.append([*map(_text, who), *scores])
        return rows


FORMATS: dict[str, type[Table]] = {"csv": Table, "canvas": Canvas, "moodle": Moodle}


def _by_learner(grades: Iterable[Grade]) -> tuple[dict[str, float], list[tuple[Learner, list[str]]]]:
    """Return the assignments with their points, and each learner with their scores in that order."""
    points: dict[str, float] = {}
    scores_of: dict[Learner, dict[str, str]] = {}
    for grade in grades:
        points[grade.assignment] = grade.points
        scores_of.setdefault(grade.learner, {})[grade.assignment] = _marks(grade.score)
    return points, [(learner, [scores[name] for name in points]) for learner, scores in scores_of.items()]


def _marks(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _text(value: str) -> str:
    return f"'{value}" if value.startswith(FORMULA) else value
