# The notebook is a link to that of a learner who has done the work.
# marks: 0
# feedback: link
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    (folder / "01_pass_around.ipynb").symlink_to(Path("../../isend", folder.name, "01_pass_around.ipynb"))
