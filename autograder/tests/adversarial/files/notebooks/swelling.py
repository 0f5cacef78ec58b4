# Twenty megabytes of empty objects, which take half a gigabyte as Python objects.
# marks: 0
# feedback: Only the first 2,000 cells
from pathlib import Path

from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    (folder / "01_pass_around.ipynb").write_bytes(b'{"cells": [' + b"{}," * (7 << 20) + b"{}]}")
