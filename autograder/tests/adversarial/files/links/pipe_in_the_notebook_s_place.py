# A pipe has the notebook's name: opening it blocks forever.
# marks: 0
# feedback: not a regular file
import os
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    os.mkfifo(folder / "01_pass_around.ipynb")
