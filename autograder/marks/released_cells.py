"""The gradebook follows a release: it gets the notebooks and cells that are released, and keeps all marks.

nbgrader does this only while nobody has submitted anything: otherwise it refuses added and removed notebooks and cells.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nbformat import NotebookNode
from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    GradeCell,
    MissingEntry,
    Notebook,
    SolutionCell,
    SourceCell,
    SubmittedNotebook,
    TaskCell,
)
from nbgrader.utils import is_grade, is_locked, is_solution, is_task

from autograder.cells import graded_exercise_of


@dataclass(frozen=True)
class ReleasedCells:
    """What the gradebook knows of a released notebook."""

    kernelspec: str
    """As JSON."""
    graded: Mapping[str, Mapping[str, Any]]
    """Values of `GradeCell`, by the cell's id."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Values of `TaskCell`, by the cell's id."""
    solutions: frozenset[str]
    """Ids of the cells in which learners write."""
    sources: Mapping[str, Mapping[str, Any]]
    """Values of `SourceCell`, by the cell's id."""

    @classmethod
    def of(cls, notebook: NotebookNode) -> ReleasedCells:
        """Read a notebook with checksums, before its hidden tests are removed."""
        cells = {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if "nbgrader" in cell.metadata}
        return cls(
            json.dumps(notebook.metadata.get("kernelspec", {})),
            {name: _points(cell) for name, cell in cells.items() if is_grade(cell)},
            {name: _points(cell) for name, cell in cells.items() if is_task(cell)},
            frozenset(name for name, cell in cells.items() if is_solution(cell)),
            {
                name: {
                    "cell_type": cell.cell_type,
                    "locked": is_locked(cell),
                    "source": cell.source,
                    "checksum": cell.metadata.nbgrader.get("checksum"),
                }
                for name, cell in cells.items()
                if is_grade(cell) or is_solution(cell) or is_locked(cell) or is_task(cell)
            },
        )

    @property
    def exercises(self) -> set[str]:
        """Exercises that the notebook's cells grade."""
        names = (graded_exercise_of(self.sources[name]["source"]) for name in self.graded)
        return {name for name in names if name}


def _points(cell: NotebookNode) -> dict[str, Any]:
    return {"max_score": float(cell.metadata.nbgrader.points), "cell_type": cell.cell_type}


@contextmanager
def following(
    gradebook: Gradebook, assignment: str, released: Mapping[str, ReleasedCells], whole: bool, log: logging.Logger
) -> Iterator[dict[str, str]]:
    """Change the gradebook of `assignment` in one transaction, which is committed at the end of this context.

    released: by the notebook's name. whole: whether these are all notebooks of the assignment. Yields the new names of
    renamed notebooks, by the old ones. An error within leaves the gradebook as it was.
    """
    session = gradebook.db
    try:
        with session.no_autoflush:
            entry = _assignment(gradebook, assignment)
            old = {notebook.name: notebook for notebook in entry.notebooks}
            renamed = _renamed(old, released) if whole else {}
            _rename(session, old, renamed)
            known = {renamed.get(name, name): notebook for name, notebook in old.items()}
            for name, cells in released.items():
                _update(session, entry, known.get(name) or _add(session, entry, name), cells, log)
            if whole:
                for name in sorted(set(known) - set(released)):
                    _withdraw(session, known[name], log)
        session.flush()
        yield renamed
        session.commit()
    except BaseException:
        session.rollback()
        raise


def _assignment(gradebook: Gradebook, name: str) -> Assignment:
    try:
        return gradebook.find_assignment(name)
    except MissingEntry:
        entry = Assignment(name=name, course_id=gradebook.course_id)
        gradebook.db.add(entry)
        return entry


def _renamed(old: Mapping[str, Notebook], released: Mapping[str, ReleasedCells]) -> dict[str, str]:
    """Return the new names of notebooks that grade the same exercise under another name: a new number, mostly."""
    graded: dict[str, str] = {}
    for name, notebook in old.items():
        sources = {cell.name: cell.source for cell in notebook.source_cells}
        for cell in notebook.grade_cells:
            if exercise := graded_exercise_of(sources.get(cell.name) or ""):
                graded[exercise] = name
    renamed = {}
    for name, cells in released.items():
        before = {graded[exercise] for exercise in cells.exercises if exercise in graded}
        if len(before) == 1 and name not in before:
            renamed[before.pop()] = name
    # a notebook that keeps its name is not replaced by one that takes over a part of its exercises
    while taken := [name for name, new in renamed.items() if new in old and new not in renamed]:
        del renamed[taken[0]]
    return renamed


def _rename(session: Any, old: Mapping[str, Notebook], renamed: Mapping[str, str]) -> None:
    for name in renamed:  # names are unique at each moment, and two notebooks may have exchanged theirs
        old[name].name = uuid4().hex
    session.flush()
    for name, new in renamed.items():
        old[name].name = new
    session.flush()


def _add(session: Any, assignment: Assignment, name: str) -> Notebook:
    """Add a notebook, also to the submissions that there are."""
    notebook = Notebook(name=name, assignment=assignment)
    session.add(notebook)
    for submission in assignment.submissions:
        session.add(SubmittedNotebook(notebook=notebook, assignment=submission))
    return notebook


def _update(
    session: Any, assignment: Assignment, notebook: Notebook, cells: ReleasedCells, log: logging.Logger
) -> None:
    notebook.kernelspec = cells.kernelspec
    _follow(session, notebook, GradeCell, notebook.grade_cells, cells.graded, (Grade,), log)
    _follow(session, notebook, TaskCell, notebook.task_cells, cells.tasks, (Grade, Comment), log)
    solutions: dict[str, Mapping[str, Any]] = {name: {} for name in cells.solutions}
    _follow(session, notebook, SolutionCell, notebook.solution_cells, solutions, (Comment,), log)
    sources = {cell.name: cell for cell in notebook.source_cells}
    for name, values in cells.sources.items():
        _set(sources.get(name) or _added(session, SourceCell(name=name, notebook=notebook)), values)
    for name in set(sources) - set(cells.sources):
        session.delete(sources[name])
    session.flush()


def _follow(
    session: Any,
    notebook: Notebook,
    kind: type[BaseCell],
    existing: Iterable[BaseCell],
    wanted: Mapping[str, Mapping[str, Any]],
    entries: Collection[type[Grade | Comment]],
    log: logging.Logger,
) -> None:
    """Make the notebook's cells of one kind those wanted. entries: what each submission has for such a cell."""
    known = {cell.name: cell for cell in existing}
    for name, values in wanted.items():
        if name in known:
            _set(known[name], values)
            continue
        cell = _added(session, kind(name=name, notebook=notebook, **values))
        for submission in notebook.submissions:
            for entry in entries:
                session.add(entry(cell=cell, notebook=submission))
    for name in sorted(set(known) - set(wanted)):
        if _is_marked([known[name]]):
            log.warning("%s has no cell %r any more; marks and comments given for it are kept", notebook.name, name)
        else:
            _delete(session, known[name])


def _withdraw(session: Any, notebook: Notebook, log: logging.Logger) -> None:
    """Remove a notebook that is not released any more, unless there are marks for it."""
    cells = [*notebook.grade_cells, *notebook.task_cells, *notebook.solution_cells]
    if _is_marked(cells):
        log.warning("%s is not released any more; marks given for it are kept, and count", notebook.name)
        return
    log.warning(
        "%s is not released any more, and is removed from the gradebook: nobody has marks for it", notebook.name
    )
    for cell in cells:
        _delete(session, cell)
    for part in (*notebook.source_cells, *notebook.submissions):
        session.delete(part)
    session.flush()
    session.delete(notebook)


def _delete(session: Any, cell: BaseCell) -> None:
    for entry in _entries(cell):
        session.delete(entry)
    session.flush()
    session.delete(cell)


def _is_marked(cells: Iterable[BaseCell]) -> bool:
    """Return whether anyone has points for one of the cells, or marks or a comment from an instructor."""
    return any(_is_given(entry) for cell in cells for entry in _entries(cell))


def _is_given(entry: Grade | Comment) -> bool:
    if isinstance(entry, Comment):
        return bool(entry.manual_comment)
    return bool(entry.auto_score or entry.extra_credit) or entry.manual_score is not None


def _entries(cell: BaseCell) -> list[Grade | Comment]:
    return [*(cell.grades or ()), *(cell.comments or ())]


def _added(session: Any, entry: Any) -> Any:
    session.add(entry)
    return entry


def _set(entry: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(entry, name, value)
