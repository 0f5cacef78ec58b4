# A right notebook, followed by two hundred megabytes of blanks.
# marks: 0
# feedback: larger than
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, pass_around.SOLUTION)
    with path.open("ab") as file:
        for _ in range(200):
            file.write(b" " * (1 << 20))
