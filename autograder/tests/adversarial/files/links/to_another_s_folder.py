# The whole folder is a link to that of a learner who has done the work.
# marks: 0
# feedback: folder
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    folder.rmdir()
    folder.symlink_to(Path("..", "isend", folder.name))
