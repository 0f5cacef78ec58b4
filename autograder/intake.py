"""Intake: a submission is data. It is rebuilt on the released notebook, with the learner's solution cells alone.

So false metadata, duplicate, reordered and deleted cells, outputs and broken JSON all end in a notebook that can be
graded. What was odd about the file is kept in it (`metadata.labkit.intake`) and shown in the feedback.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.converters.base import NbGraderException
from nbgrader.utils import is_solution
from traitlets import Int

from autograder.cells import MAGIC, exercise_of
from autograder.sandbox import Sandbox, SandboxUnavailable

MAX_CELLS = 2000
MAX_SOURCE = 200_000
"""Characters of one solution cell."""


@dataclass(frozen=True)
class SubmittedCell:
    """What is read of a cell of a submission: text and the id that it claims. Nothing else of it is believed."""

    grade_id: str
    source: str


class SubmissionExporter(NotebookExporter):
    """Reads submissions for `nbgrader autograde`: rebuilds them; what it has itself written is read as it stands."""

    max_file_bytes = Int(50_000_000, help="Larger notebooks are not read.").tag(config=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # nbconvert leaves it untyped
        try:
            Sandbox(parent=self).check()
        except SandboxUnavailable as problem:  # the grader does not start at all
            self.log.error("%s", problem)
            raise NbGraderException(str(problem)) from None

    def from_filename(self, filename: str, resources: Any = None, **options: Any) -> Any:
        """The notebook at `filename`, exported; rebuilt when it lies where submissions lie."""
        assert self.parent is not None  # nbgrader's converter
        course = self.parent.coursedir
        ids = resources["nbgrader"]
        path = Path(filename)
        if path.parent != Path(course.format_path(course.submitted_directory, ids["student"], ids["assignment"])):
            return super().from_filename(filename, resources, **options)
        released = Path(course.format_path(course.release_directory, ".", ids["assignment"]), path.name)
        if not released.is_file():
            command = f"nbgrader generate_assignment {ids['assignment']}"
            raise FileNotFoundError(f"{released} is missing: run `{command}` first")
        notebook = rebuild(nbformat.read(released, as_version=4), *read_cells(path, self.max_file_bytes))
        return self.from_notebook_node(notebook, resources, **options)  # type: ignore[no-untyped-call]


def read_cells(path: Path, max_bytes: int) -> tuple[list[SubmittedCell], list[str]]:
    """Cells of a submitted notebook, whatever its state, and what is wrong with the file. Follows no link."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return [], [f"The notebook could not be read: {error.strerror}."]
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return [], ["The notebook is not a regular file."]
        with open(handle, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(handle)
    if len(data) > max_bytes:
        return [], [f"The notebook is larger than {max_bytes / 1e6:.0f} MB; clear its outputs and hand it in again."]
    try:
        cells = json.loads(data)["cells"]
        if type(cells) is not list:
            raise TypeError("its cells are not a list")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [], [f"The file is not a notebook of format 4 ({type(error).__name__})."]
    notes = [f"Only the first {MAX_CELLS:,} cells of the notebook were read."] if len(cells) > MAX_CELLS else []
    return [cell for raw in cells[:MAX_CELLS] if (cell := _read_cell(raw)) is not None], notes


def _read_cell(raw: Any) -> SubmittedCell | None:
    if type(raw) is not dict:
        return None
    source = raw.get("source")
    if type(source) is list and all(type(line) is str for line in source):
        source = "".join(source)
    if type(source) is not str or len(source) > MAX_SOURCE:
        return None
    metadata = raw.get("metadata")
    nbgrader = metadata.get("nbgrader") if type(metadata) is dict else None
    grade_id = nbgrader.get("grade_id") if type(nbgrader) is dict else None
    # lone surrogates are valid in JSON and in no file
    clean = source.encode("utf-8", "replace").decode("utf-8")
    return SubmittedCell(grade_id if type(grade_id) is str else "", clean)


def rebuild(released: NotebookNode, cells: list[SubmittedCell], notes: list[str]) -> NotebookNode:
    """The released notebook with the learner's solution cells put in by id; a missing one becomes empty.

    An exercise cell that lost its id is found by its magic, one that lost its magic by its id.
    """
    notes = list(notes)
    for cell in released.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if not is_solution(cell):
            continue
        grade_id, exercise = cell.metadata.nbgrader.grade_id, exercise_of(cell.source)
        found = [c for c in cells if c.grade_id == grade_id]
        if exercise:
            named = [c for c in cells if exercise_of(c.source) == exercise]
            found = [c for c in found if c in named] or named or found
        if len({c.source for c in found}) > 1:
            what = f"{MAGIC} {exercise}" if exercise else grade_id
            notes.append(f"{len(found)} different cells say that they are `{what}`; the last one counts.")
        if exercise and cells and not found:
            notes.append(f"The cell `{MAGIC} {exercise}` is missing.")
        source = found[-1].source if found else ""
        cell.source = source if exercise_of(source) == exercise else f"{MAGIC} {exercise}\n{source}"
    released.metadata["labkit"] = {"intake": notes}
    return released
