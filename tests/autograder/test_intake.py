"""Whatever state a submission is in, it is rebuilt into the released notebook with the learner's solution in it."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import second_exercise
from nbgrader.nbgraderformat import MetadataValidator

from autograder.cells import exercise_cell, graded_exercise, module_text
from autograder.intake import read_cells, rebuild
from autograder.submissions import with_module

NAME = second_exercise.NAME
MODULE = "x = 'mine'\n"
LIMIT = 1_000_000

RELEASED = second_exercise.notebook(NAME, "x = 'template'\n", points=3)


def rebuilt(data: bytes, path: Path) -> nbformat.NotebookNode:
    path.write_bytes(data)
    return rebuild(copy.deepcopy(RELEASED), *read_cells(path, LIMIT))


def check(notebook: nbformat.NotebookNode, module: str) -> list[str]:
    """Everything is as released but for the module; returns what was noted."""
    MetadataValidator().validate_nb(notebook)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells] == [cell.id for cell in RELEASED.cells]
    assert [cell.metadata for cell in notebook.cells] == [cell.metadata for cell in RELEASED.cells]
    assert sum(graded_exercise(cell) is not None for cell in notebook.cells) == 1
    cell = exercise_cell(notebook, NAME)
    assert cell is not None and module_text(cell.source).strip() == module.strip()
    notes: list[str] = notebook.metadata.labkit.intake
    return notes


Change = Callable[[dict[str, Any]], None]


def without_metadata(notebook: dict[str, Any]) -> None:
    notebook["metadata"] = {}
    for cell in notebook["cells"]:
        cell["metadata"] = {}


def with_false_points(notebook: dict[str, Any]) -> None:
    notebook["cells"][4]["metadata"]["nbgrader"].update(points=1000, solution=True, locked=False, grade_id="mine")
    notebook["cells"][4]["source"] = "1000"
    notebook["cells"][4]["outputs"] = [{"output_type": "execute_result", "data": {"text/plain": "1000"}}]


def without_the_graded_cell(notebook: dict[str, Any]) -> None:
    del notebook["cells"][4]


def without_magic(notebook: dict[str, Any]) -> None:
    notebook["cells"][2]["source"] = MODULE


def in_one_string(notebook: dict[str, Any]) -> None:
    notebook["cells"][2]["source"] = "".join(notebook["cells"][2]["source"])


def with_nonsense(notebook: dict[str, Any]) -> None:
    notebook["cells"][:0] = [None, 7, {}, {"source": 3}, {"source": "x", "metadata": []}]
    notebook["cells"].append({"source": ["a", 1], "metadata": {"nbgrader": {"grade_id": ["ring"]}}})


def reordered(notebook: dict[str, Any]) -> None:
    notebook["cells"].reverse()


def with_another_claim(notebook: dict[str, Any]) -> None:
    claim = copy.deepcopy(notebook["cells"][2])
    claim["source"] = "print('I am the exercise')"
    notebook["cells"].append(claim)


CHANGES = (
    *(without_metadata, with_false_points, without_the_graded_cell, without_magic),
    *(in_one_string, with_nonsense, reordered, with_another_claim),
)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_cells_and_metadata_change_nothing(change: Change, tmp_path: Path) -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    change(submitted)
    assert check(rebuilt(json.dumps(submitted).encode(), tmp_path / "n.ipynb"), MODULE) == []


def test_of_two_exercise_cells_the_last_one_counts(tmp_path: Path) -> None:
    submitted = with_module(RELEASED, NAME, "x = 'first'")
    submitted.cells.append(copy.deepcopy(submitted.cells[2]))
    submitted.cells[-1].source = f"%%exercise {NAME}\n{MODULE}"
    submitted.cells[-1].id = "other"
    (note,) = check(rebuilt(nbformat.writes(submitted).encode(), tmp_path / "n.ipynb"), MODULE)
    assert "2 different cells" in note and NAME in note


def test_a_missing_exercise_cell_is_noted(tmp_path: Path) -> None:
    submitted = copy.deepcopy(RELEASED)
    del submitted.cells[2]
    (note,) = check(rebuilt(nbformat.writes(submitted).encode(), tmp_path / "n.ipynb"), "")
    assert "missing" in note


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a notebook"),
        (b"{", "not a notebook"),
        (b"\xff\xfe", "not a notebook"),
        (b"[" * 100_000, "not a notebook"),
        (b'{"cells": 3}', "not a notebook"),
        (b'{"worksheets": [{"cells": []}], "nbformat": 3}', "not a notebook"),
        (b'{"cells": [], "x": "' + b"x" * LIMIT + b'"}', "larger than"),
    ],
)
def test_a_file_that_is_no_notebook_gives_an_empty_one_with_its_reason(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    (note,) = check(rebuilt(data, tmp_path / "n.ipynb"), "")
    assert reason in note


def test_lone_surrogates_can_be_written(tmp_path: Path) -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    submitted["cells"][2]["source"] += "# \ud800"
    notebook = rebuilt(json.dumps(submitted).encode(), tmp_path / "n.ipynb")
    nbformat.writes(notebook).encode()


@pytest.mark.parametrize("make", [lambda path, _: path.mkdir(), lambda path, secret: path.symlink_to(secret)])
def test_links_and_folders_are_not_read(make: Callable[[Path, Path], None], tmp_path: Path) -> None:
    secret = tmp_path / "secret.ipynb"
    nbformat.write(with_module(RELEASED, NAME, MODULE), secret)
    path = tmp_path / "n.ipynb"
    make(path, secret)
    cells, (note,) = read_cells(path, LIMIT)
    assert cells == [] and ("not a regular file" in note or "could not be read" in note)


def test_a_pipe_does_not_make_the_grader_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "n.ipynb")
    cells, (note,) = read_cells(tmp_path / "n.ipynb", LIMIT)
    assert cells == [] and "not a regular file" in note
