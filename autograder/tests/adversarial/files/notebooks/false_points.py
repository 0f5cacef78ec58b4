# Its graded cell is worth a thousand points, has another id, is unlocked, and has an output that says 1000.
# marks: 0
# feedback: template
from pathlib import Path

import nbformat
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    cell = released.cells[-1]
    cell.metadata.nbgrader.update(points=1000, max_score=1000, solution=True, locked=False, schema_version=1)
    cell.source = "1000.0"
    cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "1000.0"}, execution_count=1)]
    released.cells.append(nbformat.from_dict({**cell, "id": "more"}))
    nbformat.write(released, folder / "01_pass_around.ipynb")
