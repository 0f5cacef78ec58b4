# A right notebook with an output of a gigabyte, which takes no space on disk.
# marks: 0
# feedback: larger than
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, pass_around.SOLUTION)
    with path.open("r+b") as file:
        file.seek(-2, 2)
        file.write(b', "outputs": "')
        file.seek(1 << 30, 1)
        file.write(b'"}')
