# Braces that are never closed.
# marks: 0
# feedback: not a notebook
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    (folder / "01_pass_around.ipynb").write_text('{"cells": [{"source": "')
