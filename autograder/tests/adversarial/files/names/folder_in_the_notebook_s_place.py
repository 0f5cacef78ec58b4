# A folder has the notebook's name, and the right notebook is in it.
# marks: 6
# feedback: is a folder, not a notebook
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    inner = folder / "01_pass_around.ipynb"
    inner.mkdir()
    pass_around.write(inner, released, pass_around.SOLUTION)
