"""The graded notebook: the released one with the learner's solution cells inserted by id."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_locked, is_solution

from autograder.cells import exercise_of
from autograder.intake.reading import CONFLICT, Claim, SubmittedCell
from labkit import exercise_cells
from labkit.exercise_cells import ALLOWED_ABOVE, MAGIC


def rebuild(
    released: NotebookNode, cells: Sequence[SubmittedCell], notes: Sequence[str] = (), unread: str = ""
) -> NotebookNode:
    """Return a copy of `released` with the learner's solution cells; a missing one becomes empty.

    notes: earlier notes. They and the new ones are stored in `metadata.labkit.intake`. unread: why there are no cells.
    `metadata.labkit.missing` has the reason for each exercise whose cell is missing.
    An exercise cell that lost its id is found by its magic, one that lost its magic by its id.
    """
    notebook = copy.deepcopy(released)
    all_notes, missing = list(notes), dict[str, str]()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if is_solution(cell):
            cell.source = _solution(cell, cells, all_notes, missing)
    if cells:
        changed = [cell.metadata.nbgrader.grade_id for cell in notebook.cells if _was_changed(cell, cells)]
        if changed:
            named = ", ".join(f"`{grade_id}`" for grade_id in changed)
            all_notes.append(
                f"Cells or settings that are the course's were changed or deleted: {named}. The course's count."
            )
    reasons = dict.fromkeys(missing, unread) if unread else missing
    notebook.metadata["labkit"] = {"intake": list(dict.fromkeys(all_notes)), "missing": reasons}
    return notebook


def _solution(released: NotebookNode, cells: Sequence[SubmittedCell], notes: list[str], missing: dict[str, str]) -> str:
    """Return the text of one solution cell as submitted; oddities are added to `notes`, and to `missing`."""
    grade_id, exercise = released.metadata.nbgrader.grade_id, exercise_of(released.source)
    label = f"{MAGIC} {exercise}" if exercise else grade_id
    matches = with_id = [cell for cell in cells if cell.grade_id == grade_id]
    if exercise:
        named = [cell for cell in cells if exercise_of(cell.source) == exercise]
        matches = [cell for cell in named if cell.grade_id == grade_id] or named or with_id
        if (
            named
            and len(with_id) > 1
            and any(exercise_of(cell.source) != exercise and cell.source.strip() for cell in with_id)
        ):
            notes.append(
                f"A second cell has the id of `{label}` but does not begin with that line: was the cell split? "
                "It was left out; the exercise must be one cell."
            )
        if cells and not matches:
            inside = any(f"\n{label}\n" in f"{cell.source}\n" for cell in cells)
            why = "; the line stands in a cell, but not as its first one" if inside else ""
            notes.append(f"The cell `{label}` is missing{why}.")
        if not matches:
            missing[exercise] = notes[-1] if cells else ""
    if not matches:
        return f"{MAGIC} {exercise}\n" if exercise else ""
    if len({cell.source for cell in matches}) > 1:
        notes.append(f"{len(matches)} different cells say that they are `{label}`; the last one counts.")
    taken = matches[-1]
    if CONFLICT.search(taken.source):
        notes.append(f"The cell `{label}` has git's conflict marks.")
    if taken.cell_type != released.cell_type:
        notes.append(f"The cell `{label}` is not a {released.cell_type} cell any more; it was read as one.")
    if taken.attachments:
        notes.append(f"What is attached to the cell `{label}` was left out; only its text counts.")
    if not exercise or exercise_of(taken.source) == exercise:
        return taken.source
    written = exercise_cells.read(taken.source)
    if written is None:
        return f"{MAGIC} {exercise}\n{taken.source}"
    if written.refused:
        allowed = " and ".join(f"`{magic}`" for magic in ALLOWED_ABOVE)
        notes.append(
            f"The cell `{label}` has another magic above that line, where only {allowed} may be; it was left out."
        )
    else:
        notes.append(
            f"The cell with the id of `{label}` begins with another exercise's line; it was read as `{label}`."
        )
    return f"{MAGIC} {exercise}\n{written.body}"


def _was_changed(released: NotebookNode, cells: Sequence[SubmittedCell]) -> bool:
    """Return whether a locked cell's text, or any cell's flags or points, differ from the release."""
    settings = released.metadata.get("nbgrader")
    if not settings:
        return False
    of_course = is_locked(released) or (is_grade(released) and not is_solution(released))
    same_id = [cell for cell in cells if cell.grade_id == settings.grade_id]
    if not same_id:
        return of_course
    for cell in same_id:
        if of_course and (cell.source.strip() != released.source.strip() or cell.cell_type != released.cell_type):
            return True
        if any(not _same(settings.get(name), claim) for name, claim in cell.claims.items()):
            return True
    return False


def _same(value: object, claim: Claim) -> bool:
    """Return whether a submission's claim equals the released value. A missing flag counts as false."""
    return bool(claim == (value or 0))
