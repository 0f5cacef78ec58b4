# All cells are gone except the exercise's own, which has foreign metadata.
# marks: 6
# feedback: 6 of 6 points
from pathlib import Path

import nbformat
import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, pass_around.SOLUTION)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = notebook.cells[2:3]
    notebook.cells[0].metadata = {"nbgrader": {"grade_id": "../../gradebook", "grade": True, "points": -5}}
    notebook.cells[0].id = "x"
    nbformat.write(notebook, path)
