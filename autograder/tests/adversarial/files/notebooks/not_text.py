# Random bytes, with the mark of UTF-16 in front.
# marks: 0
# feedback: not a notebook
import random
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    (folder / "01_pass_around.ipynb").write_bytes(b"\xff\xfe" + random.Random(5).randbytes(100_000))
