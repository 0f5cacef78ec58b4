# The right module, with a comment of a megabyte.
# marks: 0
# feedback: characters was left out
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    pass_around.write(folder, released, pass_around.SOLUTION + f"\n# {'x' * (1 << 20)}\n")
