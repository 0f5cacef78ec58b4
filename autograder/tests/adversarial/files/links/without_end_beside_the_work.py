# Next to the right notebook: links to /, to /dev/zero, to themselves and to the gradebook, and a pipe never written to.
# marks: 6
# feedback: 6 of 6 points
import os
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    pass_around.write(folder, released, pass_around.SOLUTION)
    for name, target in {
        "root": "/",
        "zero.ipynb": "/dev/zero",
        "loop": "loop",
        "g.db": "../../../gradebook.db",
    }.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.ipynb")
