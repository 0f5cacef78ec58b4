# Next to the right notebook: names with options, commands, markup, line breaks, escapes, half characters, `..`.
# marks: 6
# feedback: 6 of 6 points
import os
from pathlib import Path

import pass_around
from nbformat import NotebookNode

NAMES = (
    b"-rf.ipynb",
    b"$(touch taken over).ipynb",
    b"<img src=x onerror=alert('taken over')>.ipynb",
    b"line\nbreak.ipynb",
    b"\x1b[2Jtaken over.ipynb",
    b"\xff\xfe.ipynb",
    b"..\\..\\gradebook.db",
    b"...ipynb",
    b"x" * 250,
    b"01_pass_around.ipynb ",
    b"01_PASS_AROUND.IPYNB",
)


def hand_in(folder: Path, released: NotebookNode) -> None:
    pass_around.write(folder, released, pass_around.SOLUTION)
    for name in NAMES:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(b"{}")
