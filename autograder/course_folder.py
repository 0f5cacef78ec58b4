"""A course in a folder, driven by nbgrader in this process: release, submit, autograde, feedback, gradebook.

The commands `nbgrader generate_assignment`, `autograde`, ... do the same, but each takes two seconds just to start.
"""

from __future__ import annotations

import glob
import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook
from nbgrader.converters.base import BaseConverter, NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import setenv
from traitlets.config.loader import Config

from autograder.feedback.generate import GenerateAllFeedback
from autograder.intake.autograde import AutogradeReceived
from autograder.intake.collect import COLLECTED, is_student
from autograder.intake.stamps import arrival
from autograder.marks import new_gradebook
from autograder.marks.export import Grade, Table
from autograder.marks.late import LatePenalties
from autograder.release import GenerateRelease
from autograder.settings_file import SettingsFile

CONFIG_FILE = Path(__file__).with_name("nbgrader_config.py")


class CourseFailed(RuntimeError):
    """An nbgrader step failed; the message is its log."""


@dataclass(frozen=True)
class Mark:
    """The gradebook entry for one graded cell of one submission."""

    student: str
    notebook: str
    cell: str
    score: float
    max_score: float
    judged: bool = False
    """Whether the judge has given a mark."""
    by_hand: bool = False
    """Whether someone has set the mark by hand, overriding the judge."""
    look_again: bool = False
    """Whether the cell was judged again after the manual mark, so that nbgrader asks for a review."""


class Course:
    """One course. `folder` holds everything that grading produces; `options` override nbgrader_config.py."""

    def __init__(self, folder: Path, options: Config | None = None) -> None:
        self.folder = folder.resolve()
        self.options = options or Config()
        with setenv(LABKIT_COURSE=str(self.folder)):
            self.config: Config = SettingsFile(CONFIG_FILE.name, str(CONFIG_FILE.parent)).load_config()
            own = self.folder / CONFIG_FILE.name
            if own.is_file():
                self.config.merge(SettingsFile(own.name, str(own.parent)).load_config())
        self.config.merge(self.options)

    def release(self, assignment: str) -> Path:
        """Strip the solutions from the notebooks of `assignment`; return the folder of the release.

        Raises `CourseFailed`; an earlier release, and the gradebook, are then as before.
        """
        self._convert(GenerateRelease, assignment, force=True)
        return self.folder / "release" / assignment

    def released(self, assignment: str, notebook: str) -> NotebookNode:
        """Return a notebook as it was released."""
        path = self.folder / "release" / assignment / f"{notebook}.ipynb"
        content: NotebookNode = nbformat.read(path, as_version=4)
        return content

    def submit(self, student: str, assignment: str, notebook: str, submission: NotebookNode) -> Path:
        """Put `submission` where `nbgrader collect` puts submissions."""
        folder = self.folder / "submitted" / student / assignment
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{notebook}.ipynb"
        nbformat.write(submission, path)
        (folder / "timestamp.txt").write_text(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))
        return path

    def autograde(self, assignment: str, student: str = "*") -> str:
        """Grade submissions that are not graded yet; return the log. Raises `CourseFailed`."""
        return self._convert(AutogradeReceived, assignment, student)

    def record(self, assignment: str, student: str, notebooks: Sequence[str]) -> None:
        """Grade these notebooks of one learner, even if missing or already graded. Raises `CourseFailed`."""
        student = glob.escape(student)
        if sorted(notebooks) == self.notebooks(assignment):
            self._convert(AutogradeReceived, assignment, student, force=True)
            return
        for name in notebooks:
            self._convert(AutogradeReceived, assignment, student, glob.escape(name), force=True)

    def penalise(self, assignment: str, student: str, notebook: str) -> None:
        """Recompute the late penalty for graded notebooks: the due date or an extension may have changed."""
        ids = {"student": student, "assignment": assignment, "notebook": notebook}
        database = CourseDirectory(config=self.config).db_url
        penalties = LatePenalties(config=self.config, log=_silent())
        penalties.preprocess(new_notebook(), {"nbgrader": {**ids, "db_url": database}})

    def nobody(self, assignment: str) -> list[str]:
        """Return submission folders that are skipped because their names cannot be learner names."""
        return sorted({path.parent.name for path in self._handed_in(assignment)} - set(self.students(assignment)))

    def _handed_in(self, assignment: str) -> list[Path]:
        return list((self.folder / "submitted").glob(f"*/{glob.escape(assignment)}"))

    def sources(self) -> list[str]:
        """Return the assignments that can be released, sorted."""
        source = Path(CourseDirectory(config=self.config).source_directory)
        return sorted({path.parent.name for path in (self.folder / source).glob("*/*.ipynb")})

    def assignments(self) -> list[str]:
        """Return the released assignments, sorted."""
        return sorted({path.parent.name for path in (self.folder / "release").glob("*/*.ipynb")})

    def notebooks(self, assignment: str) -> list[str]:
        """Return the notebooks of a release."""
        return sorted(path.stem for path in (self.folder / "release" / assignment).glob("*.ipynb"))

    def students(self, assignment: str) -> list[str]:
        """Return the learners who submitted anything for `assignment`, without folders that cannot be learner names."""
        return sorted(name for path in self._handed_in(assignment) if is_student(name := path.parent.name))

    def by_arrival(self, assignment: str, students: Iterable[str]) -> list[str]:
        """Sort these learners by when their submissions of an assignment arrived, the earliest first."""

        def arrived(student: str) -> tuple[datetime, str]:
            place = Path(student, assignment)
            return arrival(self.folder / "submitted" / place, self.folder / COLLECTED / place), student

        return sorted(students, key=arrived)

    def feedback(self, assignment: str, student: str = "*") -> None:
        """Write the feedback pages, `feedback/STUDENT/ASSIGNMENT/NOTEBOOK.html`."""
        self._convert(GenerateAllFeedback, assignment, student)

    def marks(self, assignment: str) -> list[Mark]:
        """Return all marks of an assignment from the gradebook. A cell that was never judged has no mark."""
        with self._gradebook() as gradebook:
            return [
                Mark(
                    submission.student.id,
                    notebook.name,
                    grade.name,
                    grade.score,
                    grade.max_score,
                    grade.auto_score is not None,
                    grade.manual_score is not None,
                    bool(grade.needs_manual_grade),
                )
                for submission in gradebook.assignment_submissions(assignment)
                for notebook in submission.notebooks
                for grade in notebook.grades
                if grade.auto_score is not None or grade.manual_score is not None
            ]

    def total(self, assignment: str, student: str) -> tuple[float, float]:
        """Return a learner's score for an assignment, less the late penalty, and the highest possible one."""
        with self._gradebook() as gradebook:
            submission = gradebook.find_submission(assignment, student)
            penalty = submission.late_submission_penalty or 0.0
            return max(0.0, submission.score - penalty), submission.max_score

    def export(self, path: Path, assignments: Sequence[str] = (), kind: type[Table] = Table) -> list[Grade]:
        """Export the grades of `assignments` (all by default) to a file of that kind; return the exported grades."""
        with self._gradebook() as gradebook:
            exporter = kind(config=self.config, to=str(path), assignment=list(assignments))
            exporter.export(gradebook)
            return list(exporter.grades(gradebook))

    def grades(self, assignment: str) -> list[Grade]:
        """Return all learners' grades for one assignment."""
        with self._gradebook() as gradebook:
            return Table(config=self.config, assignment=[assignment]).grades(gradebook)

    def _gradebook(self) -> Gradebook:
        database = CourseDirectory(config=self.config).db_url
        new_gradebook.begin(database)
        return Gradebook(database)

    def _convert(
        self, kind: type[BaseConverter], assignment: str, student: str = "*", notebook: str = "*", **settings: Any
    ) -> str:
        messages = io.StringIO()
        log = _silent()
        log.addHandler(logging.StreamHandler(messages))
        ids = {"assignment_id": assignment, "student_id": student, "notebook_id": notebook}
        coursedir = CourseDirectory(config=self.config, log=log, **ids)
        new_gradebook.begin(coursedir.db_url)
        try:
            kind(coursedir=coursedir, config=self.config, log=log, **settings).start()
        except NbGraderException as error:
            raise CourseFailed(messages.getvalue() or str(error)) from None
        return messages.getvalue()


def _silent() -> logging.Logger:
    """Return a separate logger: nbgrader's output is shown only when a step fails."""
    log = logging.Logger("nbgrader", logging.INFO)
    log.addHandler(logging.NullHandler())
    return log
