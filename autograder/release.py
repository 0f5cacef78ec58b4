"""nbgrader's GenerateAssignment, which makes the learners' version of an assignment: all of it, or nothing.

nbgrader first deletes the old release. Then it refuses added and removed notebooks if anyone has submitted something,
and the course has no release. Here notebooks are converted in a folder beside the release, on the same file system,
also where `release/` or an assignment in it is a link to elsewhere; then the gradebook and the release change together.
A step that fails leaves both as they were.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import api, generateassignmentapp
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import NbGraderPreprocessor, SaveCells

from autograder.batch.lock import CourseLocked, grading_alone
from autograder.course_paths import matching
from autograder.marks.released_cells import ReleasedCells, following
from autograder.verdicts.store import FOLDER as VERDICTS
from labkit.linux.files import exchange

STAGING = ".release"


class CannotReplace(BaseException):
    """A release cannot be put in its place; the message says why and what to do.

    No Exception: nbgrader catches those, and shows their tracebacks.
    """


class NoteCells(NbGraderPreprocessor):  # type: ignore[misc]  # nbgrader has no types
    """Replaces nbgrader's SaveCells, which writes into the gradebook while other notebooks may still fail."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        """Note the notebook's cells in `resources`, with hidden tests, as nbgrader does."""
        resources["nbgrader"]["cells"] = ReleasedCells.of(nb)
        return nb, resources


class GenerateRelease(GenerateAssignment):  # type: ignore[misc]  # nbgrader has no types
    """Replaces nbgrader's converter, through `install`. Configured as `c.GenerateAssignment`."""

    preprocessors: list[type[NbGraderPreprocessor]]  # nbgrader's own trait

    def start(self) -> None:
        """Make the release. Raises NbGraderException."""
        self.preprocessors = [NoteCells if kind is SaveCells else kind for kind in self.preprocessors]
        try:
            with grading_alone(Path(self.coursedir.root)):
                self._beside = _staging_beside(self._released(self.coursedir.assignment_id))
                try:
                    super().start()
                finally:
                    shutil.rmtree(self._beside, ignore_errors=True)
        except (CourseLocked, CannotReplace) as problem:
            self.log.error("%s", problem)
            raise NbGraderException(str(problem)) from None

    @property
    def _output_directory(self) -> str:
        return str(self._beside)

    def _released(self, assignment: str) -> Path:
        """Return the folder of a release, where it really is. Raises `CannotReplace`."""
        course = self.coursedir
        return _real(Path(course.format_path(course.release_directory, ".", assignment)))

    @property
    def _whole(self) -> bool:
        """Whether all notebooks are released, rather than some of them."""
        return bool(self.coursedir.notebook_id == "*")

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Prepare the staging folder. Return False where a release is there and `force` is not set."""
        released, staged = self._released(assignment_id), Path(self._format_dest(assignment_id, student_id))
        there = [released] if self._whole else [released / Path(name).name for name in self.notebooks]
        if not self.force and all(path.exists() for path in there):
            self.log.warning("%s is released already and stays as it is; with --force it is made anew", assignment_id)
            return False
        self._cells: dict[str, ReleasedCells] = {}
        shutil.rmtree(staged, ignore_errors=True)
        if not self._whole and released.exists():
            shutil.copytree(released, staged)
        return True

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Copy the assignment's other files. The gradebook changes at the end, in `set_permissions`."""
        if not self.no_database and not self.create_assignment:
            with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
                try:
                    gradebook.find_assignment(assignment_id)
                except MissingEntry:
                    raise NbGraderException(f"No assignment called '{assignment_id}' exists in the database") from None
        super(GenerateAssignment, self).init_assignment(assignment_id, student_id)

    def write_single_notebook(self, output: str, resources: dict[str, Any]) -> None:
        """Write a notebook to the staging folder, and note its cells."""
        super().write_single_notebook(output, resources)
        if cells := resources["nbgrader"].get("cells"):
            self._cells[resources["nbgrader"]["notebook"]] = cells

    def set_permissions(self, assignment_id: str, student_id: str) -> None:
        """Do as nbgrader does when all notebooks are converted; then release them."""
        super().set_permissions(assignment_id, student_id)
        released, staged = self._released(assignment_id), Path(self._format_dest(assignment_id, student_id))
        if not released.parent.exists():
            released.parent.mkdir(parents=True)
            released.parent.chmod(staged.parent.stat().st_mode)  # for the group, if nbgrader is configured so
        if self.no_database:
            _put(staged, released)
            return
        with ExitStack() as undo:
            with (
                Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook,
                following(gradebook, assignment_id, self._cells, self._whole, self.log) as renamed,
            ):
                undo.callback(_put(staged, released))
            undo.pop_all()
        if renamed:
            self._rename_graded(assignment_id, renamed)

    def _rename_graded(self, assignment: str, renamed: dict[str, str]) -> None:
        """Rename what grading has made of renamed notebooks: the formgrader and feedback find it by their names."""
        course = self.coursedir
        for old, new in renamed.items():
            self.log.warning("%s is called %s now; its marks are kept", old, new)
        moves = []
        for step in (course.autograded_directory, course.feedback_directory, VERDICTS):
            for found in map(Path, matching(course.format_path(step, "*", glob.escape(assignment)) + "/*")):
                name = re.split(r"\.|_files$", found.name)[0]
                if name in renamed:
                    moves.append((found, found.with_name(renamed[name] + found.name[len(name) :])))
        for path, _ in moves:  # two notebooks may have exchanged their names
            path.rename(_aside(path))
        for path, new_path in moves:
            _aside(path).rename(new_path)


def _real(released: Path) -> Path:
    """Return the folder to which a release's path leads through links. Raises `CannotReplace`."""
    for path in (released.parent, released):
        if path.is_symlink() and not path.exists():
            raise CannotReplace(
                f"{path} leads to {path.readlink()}, which is not there: mount that, or remove the link"
            )
    real = released.resolve()
    if real.is_mount():
        raise CannotReplace(
            f"{real} is a mount point, which cannot be replaced in one step: mount the folder above it, or make it a "
            "link to a folder within the mounted one"
        )
    return real


def _staging_beside(released: Path) -> Path:
    """Return a folder on the file system where a release is, or will be made."""
    place = released.parent if released.parent.exists() else released.parent.parent
    return place / STAGING


def _put(staged: Path, released: Path) -> Callable[[], None]:
    """Put a release in its place, the earlier one in its own. Return the function that undoes it.

    Raises `CannotReplace`, where nothing has changed.
    """
    try:
        if released.exists():
            exchange(staged, released)
            return lambda: exchange(staged, released)
        staged.rename(released)
    except OSError as problem:  # a folder within an image's layer, one that is mounted from the same file system
        raise CannotReplace(
            f"{released} cannot be replaced in one step ({os.strerror(problem.errno or 0)}): move it away, then "
            "release again"
        ) from None

    def take_back() -> None:
        released.rename(staged)

    return take_back


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.renamed")


def install() -> None:
    """Make `nbgrader generate_assignment` and the formgrader release this way; nbgrader has no setting for it."""
    generateassignmentapp.GenerateAssignment = api.GenerateAssignment = GenerateRelease
