# The notebook is a link to the gradebook.
# marks: 0
# feedback: link
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    (folder / "01_pass_around.ipynb").symlink_to(folder.parents[2] / "gradebook.db")
