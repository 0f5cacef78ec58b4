"""`labkit sync`: generate templates and parts of the notebooks from `solutions/` and the catalogue.

    solutions/phaseN_*/NAME.py  ->  templates/phaseN_*/NAME.py, solutions removed as nbgrader does
                                ->  notebooks/phaseN_*/*.ipynb, cells whose first line is `%%exercise phaseN_*/NAME`
    labkit/catalogue.toml       ->  notebooks/phaseN_*/*.ipynb, title and links: previous, home, guide, next
                                ->  notebooks/HOME.md, the course home before one begins
    boxes in the notebooks      ->  docs/rules.md, the card of all rules
    [project.urls]              ->  README.md, docs/start.md: how to get the lab

The same within the folder of an instructor's own exercises, without a course home.

`labkit sync --check` changes nothing and fails when a file is out of date.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.catalogue import Exercise, all_exercises, root, roots, shown_path
from labkit.exercise_cells import read
from labkit.progress import HOME, page, untouched_course
from labkit.progress.navigation import navigate
from labkit.repository import PAGES, with_way_to_get
from labkit.rules import CARD, RuleError, rules, with_rules
from labkit.text_files import read_text

_DIFF_LINES = 12


class SyncError(ValueError):
    """A solution cannot be made into a template: it has no solution block, or one that does not end."""


@dataclass(frozen=True)
class Drift:
    """A file that differs from what is generated."""

    path: Path
    diff: str
    new_text: str


def main(check: bool = False) -> int:
    """Write and list files that are out of date; with `check`, only list them with diffs, and return 1 if any."""
    try:
        drifts = list(find_drifts())
    except (RuleError, SyncError) as error:
        print(error, file=sys.stderr)
        return 2
    for drift in drifts:
        if check:
            print(f"{shown_path(drift.path)} differs from its source:\n{drift.diff}")
        else:
            drift.path.parent.mkdir(parents=True, exist_ok=True)
            drift.path.write_text(drift.new_text)
            print(f"wrote {shown_path(drift.path)}")
    if not drifts:
        print("templates/ and notebooks/ are in sync with solutions/ and the catalogue")
    elif check:
        print(f"{len(drifts)} file{'s' * (len(drifts) > 1)} to write: run `labkit sync`")
    return int(check and bool(drifts))


def find_drifts() -> Iterator[Drift]:
    """All files that `labkit sync` would write. Raises SyncError and RuleError."""
    for folder in roots():
        yield from _drifts_in(folder)
    yield from _drift(root() / "notebooks" / HOME, page(untouched_course()))
    for path in map(root().joinpath, PAGES):
        if path.is_file():
            yield from _drift(path, with_way_to_get(path.read_text()))
    card = root() / CARD
    if card.is_file():
        yield from _drift(card, with_rules(card.read_text(), rules()))


def _drifts_in(folder: Path) -> Iterator[Drift]:
    """Those of templates and notebooks in one course folder."""
    solutions = {}
    for path in sorted((folder / "solutions").glob("phase*_*/*.py")):
        if not path.stem.startswith("_"):
            exercise = Exercise(f"{path.parent.name}/{path.stem}")
            solutions[exercise.name] = read_text(path)
            yield from _drift(exercise.paths["template"], template(exercise, solutions[exercise.name]))
    for path in sorted((folder / "templates").glob("phase*_*/*.py")):
        name = f"{path.parent.name}/{path.stem}"
        if name not in solutions:
            raise SyncError(f"templates/{name}.py has no solution: remove it, or write solutions/{name}.py")
    for path in sorted((folder / "notebooks").glob("phase*_*/*.ipynb")):
        yield from _notebook_drift(path, solutions)


def template(exercise: Exercise, solution: str) -> str:
    """A solution's text without its solution blocks. Uses nbgrader's preprocessor, so it equals a released cell."""
    # imported here: only instructors have nbgrader, and it takes a second to load
    from nbgrader.preprocessors import ClearSolutions

    metadata = {
        "nbgrader": {"schema_version": 3, "solution": True, "grade": False, "locked": False, "grade_id": "sync"}
    }
    cell = nbformat.v4.new_code_cell(solution, metadata=metadata)
    clear = ClearSolutions()
    if clear.begin_solution_delimeter not in solution:
        raise SyncError(
            f"solutions/{exercise.filename} has no {clear.begin_solution_delimeter!r} line: nothing is left to write"
        )
    try:
        cell, _ = clear.preprocess_cell(cell, {"language": "python"}, 0)
    except RuntimeError as error:
        raise SyncError(f"solutions/{exercise.filename}: {error}") from None
    return str(cell.source)


def exercise_cells(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    """The cells with an exercise's module, each with the exercise's full name."""
    for cell in notebook.cells:
        written = read(cell.source) if cell.cell_type == "code" else None
        if written and written.exercise:
            yield written.exercise, cell


def _drift(path: Path, new_text: str) -> Iterator[Drift]:
    old_text = path.read_text() if path.is_file() else ""
    if old_text != new_text:
        yield Drift(path, _diff(old_text, new_text), new_text)


def _notebook_drift(path: Path, solutions: dict[str, str]) -> Iterator[Drift]:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    diffs = []
    for name, cell in exercise_cells(notebook):
        if name not in solutions:
            raise SyncError(f"{shown_path(path)}: cell {cell.get('id')} is exercise {name!r}, which has no solution")
        written = read(cell.source)
        assert written is not None, "it is one of the exercise cells"
        source = "\n".join([*written.above, solutions[name].rstrip()])
        if cell.source != source:
            diffs.append(_diff(cell.source, source))
            cell.source = source
            cell.outputs, cell.execution_count = [], None  # outputs of the old text: run the notebook again
    for exercise in all_exercises():
        if exercise.notebook == path:
            diffs += [_diff(old, new) for old, new in navigate(notebook, exercise)]
    if diffs:
        yield Drift(path, "\n".join(diffs), nbformat.writes(notebook) + "\n")


def _diff(old: str, new: str) -> str:
    """The first changed lines, as a unified diff without its file names."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "now", "generated", n=1, lineterm=""))[2:]
    more = [f"... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    return "\n".join("    " + line for line in [*lines[:_DIFF_LINES], *more])
