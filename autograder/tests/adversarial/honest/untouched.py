# The template as it was released.
# marks: 0
# feedback: template
from pathlib import Path

import nbformat
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    nbformat.write(released, folder / "01_pass_around.ipynb")
