"""Changes to cells that a learner has no reason to edit, compared with the release."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autograder.cells import exercise_of
from autograder.intake import SubmittedCell

_MAX_LINES = 200
_SHOWN = 40

INNOCENT = {
    "text": "A locked cell opens in editors that do not know nbgrader; a stray key press is enough.",
    "metadata": "Editors other than JupyterLab drop or rewrite metadata when they save.",
    "deleted": "Cells are deleted by accident, and merging two copies of a notebook loses some.",
    "duplicated": "Copying a cell copies its id.",
    "added": "Copying a graded cell of another notebook, or of an earlier release, brings its points along.",
    "file": "Saving was interrupted, or the file went through a program that is not a notebook editor.",
}


@dataclass(frozen=True)
class Change:
    """One difference from the release. It changed no mark: intake rebuilds the notebook from the release."""

    kind: str
    cell: str
    what: str
    detail: str = ""
    """Line-by-line diff, where texts differ."""


def changes(release: Sequence[SubmittedCell], cells: Sequence[SubmittedCell]) -> list[Change]:
    """Return the changes to released cells that have an nbgrader id; empty where no cell could be read."""
    given = {cell.grade_id: cell for cell in release if cell.grade_id}
    count = Counter(cell.grade_id for cell in cells if cell.grade_id)
    if not cells:
        return []
    if given and not count:
        return [Change("metadata", "all cells", "no cell has nbgrader's metadata any more")]
    differences = []
    for grade_id, old in given.items():
        if count[grade_id] > 1:
            differences.append(Change("duplicated", grade_id, f"{count[grade_id]} cells have this id"))
        for new in [cell for cell in cells if cell.grade_id == grade_id][-1:]:
            differences += _differences(old, new)
        if not count[grade_id]:
            differences.append(_missing(old, cells))
    for cell in cells:
        if cell.grade_id and cell.grade_id not in given and cell.claims.get("grade"):
            points = cell.claims.get("points", "no")
            differences.append(
                Change("added", cell.grade_id, f"a graded cell with {points} points that was never released")
            )
    return list(dict.fromkeys(differences))


def _missing(old: SubmittedCell, cells: Sequence[SubmittedCell]) -> Change:
    exercise = exercise_of(old.source)
    for cell in cells:
        if cell.source == old.source or (exercise and exercise_of(cell.source) == exercise):
            return Change("metadata", old.grade_id, "the cell is there, its id is not")
    return Change("deleted", old.grade_id, "the cell is not there")


def _differences(old: SubmittedCell, new: SubmittedCell) -> list[Change]:
    differences = []
    metadata = []
    for name in ("grade", "solution", "locked", "points"):
        # a missing flag counts as false
        was, now = old.claims.get(name, False), new.claims.get(name, False)
        if was != now:
            metadata.append(f"{name}: {was} became {now}")
    if new.cell_type != old.cell_type:
        metadata.append(f"{old.cell_type} cell became {new.cell_type[:20]}")
    if metadata:
        differences.append(Change("metadata", old.grade_id, "; ".join(metadata)))
    if not old.claims.get("solution") and _text(old.source) != _text(new.source):
        differences.append(
            Change("text", old.grade_id, "the text of a locked cell differs", _difference(old.source, new.source))
        )
    return differences


def _text(source: str) -> list[str]:
    """Return the significant text: without line ends and surrounding empty lines."""
    return [line.rstrip() for line in source.strip().splitlines()]


def _difference(old: str, new: str) -> str:
    before, after = _text(old), _text(new)
    if len(before) + len(after) > _MAX_LINES or len(old) + len(new) > 100 * _MAX_LINES:
        return f"{len(before)} lines became {len(after)}, too many to compare"
    lines = [line for line in difflib.ndiff(before, after) if line[:1] in "-+"]
    more = [f"… {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    return "\n".join([*(line[:200] for line in lines[:_SHOWN]), *more])
