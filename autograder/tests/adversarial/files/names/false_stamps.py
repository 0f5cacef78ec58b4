# nbgrader's own files next to the right notebook are forged: an invalid time, a secret with a path in it.
# marks: 6
# feedback: 6 of 6 points
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    pass_around.write(folder, released, pass_around.SOLUTION)
    (folder / "timestamp.txt").write_bytes(b"\xff\xfe 0000-99-99 99:99:99 UTC; rm -rf /\0")
    (folder / "submission_secret.txt").write_text("../../../gradebook.db\n" * 1000)
