# The notebook is a hard link to a file elsewhere, which holds another learner's work.
# marks: 0
# feedback: hard link
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    elsewhere = folder.parents[2] / "elsewhere.ipynb"
    elsewhere.write_bytes((folder.parents[1] / "batch" / folder.name / "01_pass_around.ipynb").read_bytes())
    (folder / "01_pass_around.ipynb").hardlink_to(elsewhere)
