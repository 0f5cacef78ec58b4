"""The two cells that matter for grading: the exercise cell, which is a module, and the locked `grade("NAME")`."""

from __future__ import annotations

import ast

from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

MAGIC = "%%exercise"


def exercise_of(source: str) -> str:
    """Return the full name of the exercise in a cell's `%%exercise` magic; empty for any other cell."""
    first = next((line for line in source.splitlines() if line.strip()), "")
    words = first.split()
    return words[1] if len(words) > 1 and words[0] == MAGIC else ""


def exercise_cell(notebook: NotebookNode, exercise: str) -> NotebookNode | None:
    """Return the cell that holds the module `exercise`, or None."""
    return next((cell for cell in notebook.cells if is_solution(cell) and exercise_of(cell.source) == exercise), None)


def module_text(source: str) -> str:
    """Return the module in an exercise cell. The magic becomes an empty line, so line numbers match the cell."""
    lines = source.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if exercise_of(source):
        lines[start] = "\n"
    return "".join(lines)


def graded_exercise(cell: NotebookNode) -> str | None:
    """Return `ring_allreduce` for the cell `grade("ring_allreduce")`, with or without imports; None for other cells."""
    if cell.cell_type != "code" or not is_grade(cell) or is_solution(cell):
        return None
    try:
        *before, last = ast.parse(cell.source).body
    except (SyntaxError, ValueError):  # an empty cell raises ValueError
        return None
    match last:
        case ast.Expr(ast.Call(ast.Name("grade"), [ast.Constant(str() as name)], [])):
            return name if all(isinstance(line, ast.ImportFrom) for line in before) else None
    return None
