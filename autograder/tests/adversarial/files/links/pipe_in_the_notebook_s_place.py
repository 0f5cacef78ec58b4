# A pipe has the notebook's name: opening it blocks forever.
# marks: 0
# feedback: not a regular file
import os
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    os.mkfifo(folder / "pass_around.ipynb")
