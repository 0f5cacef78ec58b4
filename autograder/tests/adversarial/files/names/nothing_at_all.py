# Submits an empty folder.
# marks: 0
# feedback: The submission is empty
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    return
