"""A submission in any state is rebuilt into the released notebook with the learner's solution in it."""

from __future__ import annotations

import copy
import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import nbformat
import pytest
import second_exercise
from hypothesis import given, settings
from hypothesis import strategies as st
from nbgrader.nbgraderformat import MetadataValidator

from autograder.cells import exercise_cell, graded_exercise, module_text
from autograder.intake import Limits, read_cells, rebuild
from autograder.submissions import with_module
from labkit import catalogue

NAME = second_exercise.NAME
MODULE = "x = 'mine'\n"

RELEASED = second_exercise.notebook(NAME, "x = 'template'\n", points=3)


def rebuilt(data: bytes) -> nbformat.NotebookNode:
    submitted = read_cells(data)
    return rebuild(RELEASED, submitted.cells, submitted.notes)


def check(notebook: nbformat.NotebookNode, module: str) -> list[str]:
    """Check that everything except the module is as released; return the notes."""
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


def as_markdown(notebook: dict[str, Any]) -> None:
    notebook["cells"][2] |= {"cell_type": "markdown", "attachments": {}}


def split(notebook: dict[str, Any]) -> None:
    notebook["cells"].insert(3, {**notebook["cells"][2], "source": "y = 2"})


def with_its_line_further_down(notebook: dict[str, Any]) -> None:
    del notebook["cells"][2]["metadata"]
    notebook["cells"][2]["source"].insert(0, "import torch\n")


def with_another_exercises_line(notebook: dict[str, Any]) -> None:
    notebook["cells"][2]["source"][0] = "%%exercise pass_it_no\n"


def with_more_points(notebook: dict[str, Any]) -> None:
    notebook["cells"][4]["metadata"]["nbgrader"]["points"] = 1000


def with_a_huge_output(notebook: dict[str, Any]) -> None:
    notebook["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x" * 100] * 100_000}]


def with_answer_cells_of_an_older_release(notebook: dict[str, Any]) -> None:
    """Questions were solution cells, until `%question` took their place."""
    older = {"schema_version": 3, "solution": True, "grade": False, "locked": False, "task": False}
    for name in ("bytes_sent", "rounds"):
        metadata = {"nbgrader": {**older, "grade_id": f"answer_{name}"}}
        cell = {"cell_type": "code", "metadata": metadata, "source": [f"{name} = 3"], "outputs": [], "id": name}
        notebook["cells"].insert(4, {**cell, "execution_count": None})


def without_sources(notebook: dict[str, Any]) -> None:
    for cell in (*notebook["cells"][:2], *notebook["cells"][3:4]):
        del cell["source"]


CHANGES: dict[Change, str] = {
    without_metadata: "`grade_pass_it_on`",
    with_false_points: "`grade_pass_it_on`",
    with_more_points: "`grade_pass_it_on`",
    without_the_graded_cell: "changed or deleted: `grade_pass_it_on`",
    without_magic: "",
    in_one_string: "",
    with_nonsense: "",
    reordered: "",
    with_another_claim: "was the cell split?",
    split: "was the cell split?",
    as_markdown: "not a code cell any more",
    with_another_exercises_line: "begins with another exercise's line",
    with_a_huge_output: "",
    with_answer_cells_of_an_older_release: "",
    without_sources: "",
}


@pytest.mark.parametrize(("change", "note"), CHANGES.items())
def test_changed_cells_and_metadata_change_nothing(change: Change, note: str) -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    change(submitted)
    notes = check(rebuilt(json.dumps(submitted).encode()), MODULE)
    assert (not note and not notes) or (len(notes) == 1 and note in notes[0])


def test_of_two_exercise_cells_the_last_one_counts() -> None:
    submitted = with_module(RELEASED, NAME, "x = 'first'")
    submitted.cells.append(copy.deepcopy(submitted.cells[2]))
    submitted.cells[-1].source = f"%%exercise {NAME}\n{MODULE}"
    submitted.cells[-1].id = "other"
    (note,) = check(rebuilt(nbformat.writes(submitted).encode()), MODULE)
    assert "2 different cells" in note and NAME in note


def test_a_missing_exercise_cell_is_noted() -> None:
    submitted = copy.deepcopy(RELEASED)
    del submitted.cells[2]
    (note,) = check(rebuilt(nbformat.writes(submitted).encode()), "")
    assert "missing" in note


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a notebook"),
        (b"{", "not a notebook"),
        (b"\xff\xfe", "not a notebook"),
        (b"[" * 100_000, "not a notebook"),
        (b'{"cells": 3}', "not a notebook"),
        (b'{"worksheets": 3, "nbformat": 3}', "not a notebook"),
        (b'{"worksheets": [{"cells": [' + b"[" * 3_000_000, "too many values"),
        (b'{"cells": [], "x": ' + b"[" * 3_000_000, "too many values"),
        (b'{"cells": []} and more', "something follows"),
        (b'{"cells": [], "metadata": {"a": "not closed', "in the middle"),
        (b'{"cells": [{"source": "x" "y"}]}', "a comma is missing (byte 26)"),
        (b'{\n"cells": [\n{"source": "x" "y"}]}', "a comma is missing (line 3)"),
        (b'{\n"cells": [\n{"source": ["x = 1', "it is cut off in the middle (line 3)"),
        (
            b'{\n"cells": [\n<<<<<<< HEAD\n{"source": "x"}\n=======\n{"source": "y"}\n>>>>>>> theirs\n]}',
            "it has git's conflict marks, the first one in line 3",
        ),
        (b" \n", "it is empty"),
        (b"<!DOCTYPE html>\n", "it is a page of the web"),
        (b"PK\x03\x04\x14", "it is an archive (zip)"),
        (b'{"cells": []}', "The notebook has no cells"),
        (b'{"cells": [{"metadata": ' + b"[" * 5000 + b"]" * 5000 + b"}]}", "too deep"),
    ],
)
def test_a_file_that_is_no_notebook_gives_an_empty_one_with_its_reason(data: bytes, reason: str) -> None:
    (note,) = check(rebuilt(data), "")
    assert reason in note


def test_lone_surrogates_can_be_written() -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    submitted["cells"][2]["source"] += "# \ud800"
    notebook = rebuilt(json.dumps(submitted).encode())
    nbformat.writes(notebook).encode()


def test_outputs_that_are_not_quite_json_cost_nobody_their_work() -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    submitted["cells"].append({"cell_type": "code", "source": "1", "metadata": {}, "outputs": [{"data": math.nan}]})
    data = json.dumps(submitted).encode()
    assert b"NaN" in data and check(rebuilt(data), MODULE) == check(rebuilt(data.replace(b"NaN", b"\xff0")), MODULE)


@pytest.mark.parametrize(
    "above",
    ["%%time\n", "%%capture out --no-stderr\n", "# mine\n\n", "%%time\n# mine\n%%capture\n", "\n\n  \n%%time\n\n"],
)
def test_what_the_notebook_allows_above_the_exercise_is_graded(above: str) -> None:
    notebook = copy.deepcopy(RELEASED)
    notebook.cells[2].source = f"{above}{notebook.cells[2].source.splitlines()[0]}\n{MODULE}"
    result = rebuilt(nbformat.writes(notebook).encode())
    assert check(result, MODULE) == []
    cell = exercise_cell(result, NAME)
    assert cell is not None
    assert module_text(cell.source).splitlines().index(MODULE.strip()) == len(above.splitlines()) + 1


def test_a_cell_that_is_indented_as_a_whole_is_graded_as_the_notebook_runs_it() -> None:
    notebook = copy.deepcopy(RELEASED)
    notebook.cells[2].source = f"    %%exercise {NAME}\n    {MODULE}"
    assert check(rebuilt(nbformat.writes(notebook).encode()), MODULE) == []


def test_a_magic_that_the_notebook_refuses_costs_nothing_and_is_noted() -> None:
    notebook = copy.deepcopy(RELEASED)
    notebook.cells[2].source = f"%%timeit\n%%exercise {NAME}\n{MODULE}"
    notes = check(rebuilt(nbformat.writes(notebook).encode()), MODULE)
    assert len(notes) == 1 and "only `%%time` and `%%capture` may be" in notes[0]


def test_a_line_that_is_not_the_first_of_its_cell_is_told() -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    with_its_line_further_down(submitted)
    (note,) = check(rebuilt(json.dumps(submitted).encode()), "")
    assert "missing" in note and "not as its first one" in note


def encoded(encoding: str) -> bytes:
    text = nbformat.writes(with_module(RELEASED, NAME, "x = 'é'\n"))
    return text.encode(encoding)


@pytest.mark.parametrize(
    ("encoding", "note"),
    [("utf-8-sig", ""), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("utf-32", "UTF-32"), ("latin-1", "Latin-1")],
)
def test_other_encodings_are_read_and_noted(encoding: str, note: str) -> None:
    notes = check(rebuilt(encoded(encoding)), "x = 'é'\n")
    assert (not note and not notes) or note in notes[0]


@pytest.mark.parametrize("told", [3, 5, "4", None, 10**30])
def test_a_false_format_is_noted_and_the_cells_are_read(told: object) -> None:
    submitted = json.loads(nbformat.writes(with_module(RELEASED, NAME, MODULE)))
    submitted["nbformat"] = told
    (note,) = check(rebuilt(json.dumps(submitted).encode()), MODULE)
    assert "format 4" in note


def in_format_3(notebook: nbformat.NotebookNode) -> bytes:
    return bytes(nbformat.writes(nbformat.convert(copy.deepcopy(notebook), 3), version=3).encode())


def test_a_notebook_of_format_3_is_read_as_one_of_format_4() -> None:
    data = in_format_3(with_module(RELEASED, NAME, MODULE))
    assert b'"worksheets"' in data and b'"source": "x = ' not in data
    (note,) = check(rebuilt(data), MODULE)
    assert "format 3" in note


def test_every_cell_of_a_real_notebook_comes_through_format_3_and_its_locked_cells_count_as_unchanged() -> None:
    path = catalogue.find("ring_allreduce").notebook
    released: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    submitted = read_cells(in_format_3(released))
    assert [(cell.cell_type, cell.source.strip()) for cell in submitted.cells] == [
        (cell.cell_type, cell.source.strip()) for cell in released.cells
    ]
    graded = rebuild(released, submitted.cells, submitted.notes)
    assert [cell.source for cell in graded.cells] == [cell.source for cell in released.cells]
    (note,) = graded.metadata.labkit.intake
    assert "format 3" in note


def test_worksheets_hold_no_more_cells_than_a_notebook_may() -> None:
    sheet = {"cells": [{"cell_type": "code", "input": "x", "metadata": {}}] * 3}
    submitted = read_cells(json.dumps({"nbformat": 3, "worksheets": [sheet] * 4}).encode(), Limits(cells=5))
    assert len(submitted.cells) == 5
    few, of_3 = submitted.notes
    assert "Only the first 5 cells" in few and "format 3" in of_3


def test_the_release_is_not_changed_by_what_is_handed_in() -> None:
    before = copy.deepcopy(RELEASED)
    rebuilt(encoded("utf-8"))
    assert before == RELEASED


def test_what_is_not_read_takes_no_memory() -> None:
    data = b'{"cells": [{"outputs": [' + b"{}," * 100_000 + b'[]], "source": "x = 1"}], "metadata": {}}'
    tracemalloc.start()
    try:
        cells = read_cells(data).cells
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [cell.source for cell in cells] == ["x = 1"]
    assert peak < 100_000  # as Python objects they would take 7 MB


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
IDS = st.sampled_from(["pass_it_on", "grade_pass_it_on", "other"]) | JSON
SETTINGS = st.fixed_dictionaries({}, optional={"grade_id": IDS, "points": JSON, "solution": JSON, "locked": JSON})
CELL = st.fixed_dictionaries(
    {},
    optional={
        "cell_type": st.sampled_from(["code", "markdown", "raw"]) | JSON,
        "source": st.sampled_from(["", f"%%exercise {NAME}\nx = 1", "%%exercise"]) | st.lists(st.text()) | JSON,
        "metadata": st.fixed_dictionaries({}, optional={"nbgrader": SETTINGS | JSON}) | JSON,
        "outputs": JSON,
        "attachments": JSON,
    },
)
SHEET = st.fixed_dictionaries({"cells": st.lists(CELL | JSON, max_size=6)})
NOTEBOOK = (
    st.fixed_dictionaries({"cells": st.lists(CELL | JSON, max_size=6)}, optional={"nbformat": JSON})
    | st.fixed_dictionaries({"worksheets": st.lists(SHEET | JSON, max_size=3)}, optional={"nbformat": JSON})
    | JSON
)


@settings(max_examples=150)
@given(NOTEBOOK, st.booleans())
def test_any_json_value_gives_the_released_notebook_with_other_solution_cells(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    notebook = rebuilt(data)
    nbformat.validate(nbformat.reads(nbformat.writes(notebook), as_version=4))
    for cell, released in zip(notebook.cells, RELEASED.cells, strict=True):
        assert cell == released or (cell.id == "exercise" and {**cell, "source": ""} == {**released, "source": ""})
    assert all(note.isprintable() for note in notebook.metadata.labkit.intake)


@settings(max_examples=150)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ cels1\n').map(str.encode))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    submitted = read_cells(data)
    assert submitted.cells or submitted.notes or json.loads(data)["cells"] is not None


@settings(max_examples=100)
@given(st.lists(st.fixed_dictionaries({"source": st.text(), "metadata": JSON, "outputs": JSON}), max_size=5))
def test_the_texts_are_those_that_a_json_reader_gives(cells: list[dict[str, Any]]) -> None:
    data = json.dumps({"metadata": {}, "cells": cells, "nbformat": 4}, indent=1)
    texts = [cell["source"].encode("utf-8", "replace").decode() for cell in json.loads(data)["cells"]]
    assert [cell.source for cell in read_cells(data.encode()).cells] == texts
