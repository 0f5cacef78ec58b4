# Three thousand files and a hundred nested folders next to the right notebook.
# marks: 6
# feedback: 6 of 6 points
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    pass_around.write(folder, released, pass_around.SOLUTION)
    for number in range(3000):
        (folder / f"{number}").touch()
    (folder / "/".join("x" * 100)).mkdir(parents=True)
