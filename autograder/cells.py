"""The two cells that matter for grading: the exercise cell, which is a module, and the locked `grade("NAME")`."""

from __future__ import annotations

import ast

from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from labkit import exercise_cells


def exercise_of(source: str) -> str:
    """Return the full name of the exercise in a cell's `%%exercise` magic; empty for any other cell."""
    cell = exercise_cells.read(source)
    return cell.exercise if cell and not cell.refused else ""


def exercise_cell(notebook: NotebookNode, exercise: str) -> NotebookNode | None:
    """Return the cell that holds the module `exercise`, or None."""
    return next((cell for cell in notebook.cells if is_solution(cell) and exercise_of(cell.source) == exercise), None)


def module_text(source: str) -> str:
    """Return the module in an exercise cell. Lines above it become empty ones, so line numbers match the cell."""
    cell = exercise_cells.read(source)
    return cell.module if cell else source


def graded_exercise(cell: NotebookNode) -> str | None:
    """Return `ring_allreduce` for the cell `grade("ring_allreduce")`, with or without imports; None for other cells."""
    return (
        graded_exercise_of(cell.source)
        if cell.cell_type == "code" and is_grade(cell) and not is_solution(cell)
        else None
    )


def graded_exercise_of(source: str) -> str | None:
    """Return `ring_allreduce` for the text `grade("ring_allreduce")`, with or without imports; None for other text."""
    try:
        *before, last = ast.parse(source).body
    except (SyntaxError, ValueError):  # an empty cell raises ValueError
        return None
    match last:
        case ast.Expr(ast.Call(ast.Name("grade"), [ast.Constant(str() as name)], [])):
            return name if all(isinstance(line, ast.ImportFrom) for line in before) else None
    return None
