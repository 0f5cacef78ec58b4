# A pipe has the notebook's name: who opens it waits for ever.
# marks: 0
# feedback: not a regular file
import os
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    os.mkfifo(folder / "pass_around.ipynb")
