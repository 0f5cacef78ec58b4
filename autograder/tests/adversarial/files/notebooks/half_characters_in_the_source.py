# The module holds lone surrogates, zeros and direction marks: valid in JSON, but in no file.
# marks: 0
# feedback: SyntaxError
import json
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, "module = 'here'\n")
    text = json.dumps("\ud800 \udcff \0 \u202e \x1b[2J")[1:-1]
    path.write_text(path.read_text().replace("module = 'here'", f"module = '{text}'"))
