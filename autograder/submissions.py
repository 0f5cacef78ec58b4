"""Generated submissions: the released notebook as a learner who wrote a given module would submit it."""

from __future__ import annotations

import copy

from nbformat import NotebookNode

from autograder.cells import exercise_cell
from labkit.exercise_cells import MAGIC


def with_module(released: NotebookNode, exercise: str, module: str) -> NotebookNode:
    """Return a copy of `released` whose exercise cell holds `module`. Raises ValueError when there is no such cell."""
    notebook = copy.deepcopy(released)
    cell = exercise_cell(notebook, exercise)
    if cell is None:
        raise ValueError(f"the notebook has no cell '{MAGIC} {exercise}'")
    cell.source = f"{MAGIC} {exercise}\n{module}"
    return notebook
