# A module of brackets nested so deeply that it crashes a parser.
# marks: 0
# feedback: MemoryError
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    deep = "x = " + "(" * 90_000 + ")" * 90_000
    pass_around.write(folder, released, f"__all__ = ['pass_around']\npass_around = {'-' * 9_000}1\n{deep}\n")
