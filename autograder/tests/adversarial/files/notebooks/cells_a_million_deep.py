# Cells nested a million deep, in front of those with the work.
# marks: 0
# feedback: too many values
from pathlib import Path

import nbformat
import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, pass_around.SOLUTION)
    text = nbformat.writes(nbformat.read(path, as_version=4))
    path.write_text('{"mine": ' + "[" * 1_000_000 + "]" * 1_000_000 + "," + text.lstrip()[1:])
