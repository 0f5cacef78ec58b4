# Submits an empty folder.
# marks: 0
# feedback: missing
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    return
