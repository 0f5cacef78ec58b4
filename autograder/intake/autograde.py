"""nbgrader's Autograde, on intake's version of the submissions.

nbgrader looks into a submission's folder in many places: it matches notebooks, reads `timestamp.txt`, copies all other
files. So it never gets to see that folder. It works on `received/STUDENT/ASSIGNMENT`, which holds the rebuilt notebooks
and nbgrader's own two stamps, and can be deleted at any time.
"""

from __future__ import annotations

import fnmatch
import os
import re
import secrets
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import api, autogradeapp
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets import Int

from autograder.course_paths import matching
from autograder.intake.collect import COLLECTED, is_student
from autograder.intake.folder import STAMPS, is_odd, opened, read_stamp, shown
from autograder.intake.limits import EntryRefused, IntakeFailed, Limits
from autograder.intake.receive import Intake, read_release, receive
from autograder.intake.stamps import FORMAT, arrival, current_record, stamp_in

RECEIVED = "received"


class AutogradeReceived(Autograde):  # type: ignore[misc]  # nbgrader has no types
    """Replaces nbgrader's converter, through `install`. Configured as `c.Autograde`."""

    force: bool  # nbgrader's own trait
    max_notebook_bytes = Int(Limits().notebook_bytes, help="Larger notebooks are not read.").tag(config=True)

    def start(self) -> None:
        """Grade submissions that are not graded yet. Raises NbGraderException."""
        from autograder.sandbox import Sandbox, SandboxUnavailable  # imports torch: seconds in every nbgrader command

        try:
            Sandbox(parent=self).check()
        except SandboxUnavailable as problem:  # the grader does not start at all
            self.log.error("%s", problem)
            raise NbGraderException(str(problem)) from None
        self._submitted = self.coursedir.submitted_directory
        self.coursedir.submitted_directory = RECEIVED
        try:
            super().start()
        finally:
            self.coursedir.submitted_directory = self._submitted

    def init_notebooks(self) -> None:
        """Add one entry for each submission, whatever it contains: its notebooks are those of the release."""
        course = self.coursedir
        try:
            self._release = read_release(Path(course.format_path(course.release_directory, ".", course.assignment_id)))
        except IntakeFailed as problem:
            self.log.error("%s", problem)
            raise NbGraderException(str(problem)) from None
        names = fnmatch.filter(self._release.notebooks, course.notebook_id)
        matched = course.format_path(self._submitted, course.student_id, course.assignment_id)
        parts = course.format_path(self._submitted, "(?P<student>.*)", "(?P<assignment>.*)", escape=True)
        pattern = re.compile(parts, re.DOTALL)
        self.assignments = {}
        arrivals = {}
        for path in sorted(matching(matched)):
            match = pattern.fullmatch(path)
            if match is None or not is_student(match["student"]) or is_odd(match["assignment"]):
                self.log.error("Not graded, no learner has such a name: %s", shown(Path(path).parent.name))
                continue
            ids = match["student"], match["assignment"]
            arrivals[course.format_path(RECEIVED, *ids)] = arrival(
                Path(path), Path(course.format_path(COLLECTED, *ids))
            )
        for received in sorted(arrivals, key=lambda each: arrivals[each]):
            self.assignments[received] = [str(Path(received, f"{name}.ipynb")) for name in names]
        if not self.assignments or not names:
            self.log.error("No submission of '%s' was matched by '%s'", course.assignment_id, matched)
            raise NbGraderException("nothing was matched")

    def convert_notebooks(self) -> None:
        """Grade one submission after the other, as they have arrived. Raises NbGraderException at the end."""
        failed: NbGraderException | None = None
        for received, notebooks in self.assignments.copy().items():
            self.assignments = {received: notebooks}  # nbgrader sorts them by name
            try:
                super().convert_notebooks()
            except NbGraderException as problem:
                failed = problem
        if failed:
            raise failed

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Take the submission in before nbgrader looks at it."""
        self._take_in(student_id, assignment_id)
        self._withdrawn = self._lay_out_withdrawn(student_id, assignment_id)
        begun = self._begun(assignment_id, student_id)
        forced = self.force
        # otherwise the remains of a killed grader would count as graded
        self.force = forced or begun.exists() or self._is_another(assignment_id, student_id)
        try:
            wanted: bool = super().init_destination(assignment_id, student_id)
        finally:
            self.force = forced
        if wanted:
            begun.parent.mkdir(parents=True, exist_ok=True)
            begun.touch()
            # nbgrader does not overwrite an existing page: learners would keep reading the old marks
            course = self.coursedir
            pages = course.format_path(course.feedback_directory, student_id, assignment_id)
            shutil.rmtree(pages, ignore_errors=True)
        return wanted

    def _is_another(self, assignment: str, student: str) -> bool:
        """Return whether the graded submission has another time than this one.

        nbgrader grades only a later one again, so that a time in the future would hide all that follow.
        """
        folders = self._format_source(assignment, student), self._format_dest(assignment, student)
        new, graded = (self.coursedir.get_existing_timestamp(folder) for folder in folders)
        return new is not None and new != graded

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Do as nbgrader does. A notebook that is not released any more is worth 0 to those without marks for it."""
        super().init_assignment(assignment_id, student_id)
        for name, graded in self._withdrawn.items():
            Path(self._format_dest(assignment_id, student_id), name).write_bytes(graded)
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            for notebook in gradebook.find_submission(assignment_id, student_id).notebooks:
                for grade in notebook.grades if notebook.name not in self._release.notebooks else ():
                    if grade.auto_score is None:
                        grade.auto_score, grade.needs_manual_grade = 0, False
            gradebook.db.commit()

    def set_permissions(self, assignment_id: str, student_id: str) -> None:
        """Do as nbgrader does when all notebooks are graded; then this submission is finished."""
        super().set_permissions(assignment_id, student_id)
        self._begun(assignment_id, student_id).unlink(missing_ok=True)

    def _begun(self, assignment: str, student: str) -> Path:
        """Return the file that is there while a submission is graded."""
        graded = Path(self._format_dest(assignment, student))
        return graded.with_name(f".{graded.name}.begun")

    def _lay_out_withdrawn(self, student: str, assignment: str) -> dict[str, bytes]:
        """Add notebooks that the gradebook has and the release has no more: nbgrader sets marks of missing ones to 0.

        Return the graded copies by name of file, since nbgrader may delete them with the others.
        """
        course, graded = self.coursedir, {}
        with Gradebook(course.db_url, course.course_id) as gradebook:
            try:
                names = {notebook.name for notebook in gradebook.find_assignment(assignment).notebooks}
            except MissingEntry:  # nbgrader reports it
                names = set()
        for name in names - set(self._release.notebooks):
            nbformat.write(new_notebook(), Path(course.format_path(RECEIVED, student, assignment), f"{name}.ipynb"))
            path = Path(self._format_dest(assignment, student), f"{name}.ipynb")
            if path.is_file():
                graded[path.name] = path.read_bytes()
        return graded

    def _take_in(self, student: str, assignment: str) -> None:
        course = self.coursedir
        submitted = Path(course.format_path(self._submitted, student, assignment))
        record = current_record(Path(course.format_path(COLLECTED, student, assignment)))
        limits = Limits(notebook_bytes=self.max_notebook_bytes)
        intake = receive(submitted, self._release, limits, record)
        if record and record.content_hash != intake.content_hash:
            self.log.warning("%s was changed after it was collected", submitted)
        lay_out(intake, submitted, Path(course.format_path(RECEIVED, student, assignment)))


def lay_out(intake: Intake, submitted: Path, received: Path) -> None:
    """Write the files that nbgrader works on: the rebuilt notebooks and its two stamps, replacing earlier files."""
    making = received.with_name(f".{received.name}")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for name, notebook in intake.notebooks.items():
        nbformat.write(notebook, making / f"{name}.ipynb")
    write_stamps(intake.handed_in, submitted, making)
    if received.exists():
        shutil.rmtree(received)
    making.rename(received)


def write_stamps(handed_in: datetime | None, submitted: Path, folder: Path) -> None:
    """Write nbgrader's two stamps: release_feedback stops for all learners when one submission lacks either."""
    stamp, secret_file = STAMPS
    secret = _secret(submitted)
    (folder / stamp).write_text(handed_in.strftime(FORMAT) if handed_in else "")
    (folder / secret_file).write_text(secret)


def _secret(submitted: Path) -> str:
    """Return the submission's own secret, which names its feedback file in the exchange for its author to find."""
    try:
        with opened(submitted) as folder:
            secret = read_stamp(folder, STAMPS[1])
    except EntryRefused:
        secret = ""
    return secret if re.fullmatch(r"[0-9a-f]{32,256}", secret) else secrets.token_hex(64)


class ReceivedExporter(NotebookExporter):
    """Default for `c.Autograde.exporter_class`: refuses a converter that reads submissions directly."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # nbconvert leaves it untyped
        if not isinstance(self.parent, AutogradeReceived):
            raise NbGraderException("this is nbgrader's own Autograde: call autograder.intake.autograde.install")


def submitted_timestamp(grader: api.NbGraderAPI, assignment_id: str, student_id: str) -> datetime | None:
    """Return a submission's time for the formgrader's tables: the same as `receive` returns, but by reading one file.

    nbgrader's version opens `timestamp.txt` wherever it leads, and an invalid one breaks the whole table.
    """
    course = grader.coursedir
    record = current_record(Path(course.format_path(COLLECTED, student_id, assignment_id)))
    if record:
        return record.handed_in
    try:
        return stamp_in(Path(course.format_path(course.submitted_directory, student_id, assignment_id))).time
    except IntakeFailed:
        return None


def existing_timestamp(course: CourseDirectory, folder: str) -> datetime | None:
    """Call nbgrader's function, without its warning for each submission of unknown time."""
    try:
        if os.stat(os.path.join(folder, STAMPS[0])).st_size == 0:
            return None
    except OSError:
        return None
    timestamp: datetime | None = _stock_timestamp(course, folder)
    return timestamp


_stock_timestamp = CourseDirectory.get_existing_timestamp


def install() -> None:
    """Make `nbgrader autograde` and the formgrader read submissions through intake; nbgrader has no setting for it."""
    autogradeapp.Autograde = api.Autograde = AutogradeReceived
    CourseDirectory.get_existing_timestamp = existing_timestamp
    api.NbGraderAPI.get_submitted_timestamp = submitted_timestamp
