# Two cells claim to be the exercise: the right module first, then one that does nothing.
# marks: 0
# feedback: different cells
from pathlib import Path

import nbformat
import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, pass_around.SOLUTION)
    notebook = nbformat.read(path, as_version=4)
    second = nbformat.from_dict({**notebook.cells[2], "id": "second"})
    second.source = (
        f"%%exercise {pass_around.NAME}\n__all__ = ['pass_around']\n\ndef pass_around(tensor):\n    return tensor"
    )
    notebook.cells.append(second)
    nbformat.write(notebook, path)
