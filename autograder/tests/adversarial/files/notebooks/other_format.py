# The right module in a notebook of format 3, with a minor version that no program will ever reach: read anyway.
# marks: 6
# feedback: The notebook is in format 3
import json
from pathlib import Path

import pass_around
from nbformat import NotebookNode


def hand_in(folder: Path, released: NotebookNode) -> None:
    cell = {"cell_type": "code", "input": f"%%exercise {pass_around.NAME}\n{pass_around.SOLUTION}"}
    notebook = {"nbformat": 3, "nbformat_minor": 10**9, "worksheets": [{"cells": [cell]}]}
    (folder / "01_pass_around.ipynb").write_text(json.dumps(notebook))
