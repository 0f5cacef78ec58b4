"""What lies in the folders of a course, as data: nothing is run, no link is followed, no file is believed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from autograder.cells import exercise_cell, module_text
from autograder.intake import SubmittedCell, read_cells, rebuild

MAX_BYTES = 50_000_000


@dataclass(frozen=True)
class Notebook:
    """One notebook of one submission, or of the release."""

    student: str
    name: str
    course: str
    """Empty for the course at hand; else the folder of an earlier one."""
    cells: Sequence[SubmittedCell]
    notes: Sequence[str]
    """What is wrong with the file, in words."""


def submissions(folder: Path, phase: str, names: Sequence[str], course: str = "") -> Iterator[Notebook]:
    """All notebooks called `names` that were handed in, `STUDENT/PHASE/NAME.ipynb` in `folder` or its `submitted/`."""
    inner = folder / "submitted"
    top = inner if inner.is_dir() else folder
    for student in sorted(entry.name for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)):
        inside = top / student / phase
        if inside.is_dir() and not inside.is_symlink():
            for name in names:
                path = inside / f"{name}.ipynb"
                if os.path.lexists(path):
                    cells, notes = _read(path)
                    yield Notebook(student, name, course, cells, notes)


def released(folder: Path) -> list[Notebook]:
    """The notebooks that learners were given."""
    return [Notebook("", path.stem, "", *_read(path)) for path in sorted(folder.glob("*.ipynb"))]


def _read(path: Path) -> tuple[Sequence[SubmittedCell], Sequence[str]]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return [], [f"The notebook could not be read: {error.strerror}."]
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return [], ["The notebook is not a regular file."]
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        return [], [f"The notebook is larger than {MAX_BYTES / 1e6:.0f} MB."]
    submitted = read_cells(data)
    return submitted.cells, submitted.notes


def module(notebook: Notebook, blank: NotebookNode, exercise: str) -> str:
    """The module that was handed in for `exercise`, as the judge gets it; empty when there is none.

    blank: a notebook that holds nothing but the released exercise cell.
    """
    cell = exercise_cell(rebuild(blank, notebook.cells), exercise)
    return module_text(cell.source) if cell is not None else ""
