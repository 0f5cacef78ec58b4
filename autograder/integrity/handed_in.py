"""Submissions in the folders of a course, read through intake: as data, nothing is run, no link is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from autograder.cells import exercise_cell, exercise_of, module_text
from autograder.intake import Release, SubmittedCell, rebuild, receive


@dataclass(frozen=True)
class Notebook:
    """One notebook of one submission."""

    student: str
    name: str
    course: str
    """Folder of an earlier course; empty for the current one."""
    cells: Sequence[SubmittedCell]
    notes: Sequence[str]
    """Oddities of the file and its exercise cells, in words."""
    modules: dict[str, str]
    """Submitted text for each exercise, by full name, as the judge gets it; empty when there is none."""


def blank(release: Release) -> Release:
    """Return the release reduced to its exercise cells: the rest of a notebook does not matter here."""
    return Release({name: _exercises(notebook) for name, notebook in release.notebooks.items()}, release.files)


def _exercises(released: NotebookNode) -> NotebookNode:
    cells = []
    for cell in released.cells:
        if exercise_of(cell.source) and "nbgrader" in cell.metadata:
            metadata = {"nbgrader": {"grade_id": cell.metadata.nbgrader.grade_id, "solution": True}}
            cells.append(new_code_cell(cell.source, metadata=metadata))
    notebook: NotebookNode = new_notebook(cells=cells)
    return notebook


def submissions(folder: Path, phase: str, release: Release, course: str = "") -> Iterator[Notebook]:
    """Yield all released notebooks that were submitted, `STUDENT/PHASE` in `folder` or in its `submitted/`.

    release: from `blank`. Raises `IntakeFailed` for infrastructure failures, such as a full disk.
    """
    inner = folder / "submitted"
    top = inner if inner.is_dir() else folder
    for student in sorted(entry.name for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)):
        if not os.path.lexists(top / student / phase):
            continue
        for name, submitted in receive(top / student / phase, release).submitted.items():
            rebuilt = rebuild(release.notebooks[name], submitted.cells, submitted.notes)
            yield Notebook(student, name, course, submitted.cells, rebuilt.metadata.labkit.intake, modules(rebuilt))


def modules(notebook: NotebookNode) -> dict[str, str]:
    """Return the module of each exercise cell of a notebook."""
    names = [exercise_of(cell.source) for cell in notebook.cells]
    cells = {name: exercise_cell(notebook, name) for name in names if name}
    return {name: module_text(cell.source) for name, cell in cells.items() if cell is not None}
