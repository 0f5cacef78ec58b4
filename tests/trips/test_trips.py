"""The five trips of docs/architecture.md lead through the functions, processes and order that the page tells."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import nbformat
import pytest
import second_exercise

from autograder.course_folder import Course
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

HERE = Path(__file__).parent
TREE = HERE.parent.parent
PAGE = TREE / "docs" / "architecture.md"
ROW = re.compile(r"^\| ([^|]*?) ?\| `([^`]+)` \|$")
NOT_FOLLOWED = "inside the sandbox"
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK


def trip(title: str) -> list[tuple[str, str]]:
    """Return the process and the function of each row of a trip."""
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n#")[0]
    rows, process = [], ""
    for line in section.splitlines():
        if match := ROW.match(line):
            process = match[1] or process
            rows.append((process, match[2]))
    return rows


def titles() -> list[str]:
    return re.findall(
        r"^### (.+)$", PAGE.read_text().partition("## Five trips\n")[2].partition("\n## ")[0], re.MULTILINE
    )


def followed(command: Sequence[str], file: Path) -> dict[int, list[str]]:
    """Run a command; return the functions that each of its processes called, in the order of their first calls."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "TRIP_TREE": str(TREE), "TRIP_FILE": str(file)}
    environment.pop("LABKIT_ZYGOTE", None)  # kernels of tests are forked from it: no profiler would come along
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = defaultdict(list)
    for line in file.read_text().splitlines():
        pid, _, place = line.partition(" ")
        calls[int(pid)].append(place)
    return calls


def check(title: str, calls: dict[int, list[str]]) -> None:
    """Compare a trip with what each process called: the rows of a process are called by one process, in their order."""
    rows = [row for row in trip(title) if row[0] != NOT_FOLLOWED]
    assert len(rows) > 8, title
    for process, members in groupby(sorted(rows, key=lambda row: row[0]), key=lambda row: row[0]):
        wanted = [place for _, place in members]
        best = max(calls.values(), key=lambda places: len(set(wanted) & set(places)))
        assert [place for place in wanted if place not in best] == [], f"{title}: not called in the {process}"
        assert sorted(wanted, key=best.index) == wanted, f"{title}: order in the {process}"


@pytest.mark.parametrize(
    ("title", "cluster"), [("A cell on virtual ranks", "virtual"), ("A cell on local ranks", "local")]
)
def test_a_cell(title: str, cluster: str, tmp_path: Path) -> None:
    check(title, followed([str(HERE / "cell.py"), cluster], tmp_path / "calls"))


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_a_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_exercise.add_to(tmp_path / "tree")
    notebook = second_exercise.notebook(second_exercise.NAME, second_exercise.SOLUTION, points=3)
    nbformat.write(notebook, tmp_path / "tree" / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb")
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path / "tree"))
    course = Course(tmp_path / "tree" / "course")
    course.release(PHASE)
    released = course.released(PHASE, NOTEBOOK)
    course.submit("ada", PHASE, NOTEBOOK, with_module(released, second_exercise.NAME, second_exercise.SOLUTION))
    command = ["-m", "labkit", "autograde", PHASE, "--workers", "1"]
    check("A submission, from its folder to its marks", followed(command, tmp_path / "calls"))


def test_a_prediction(tmp_path: Path) -> None:
    command = ["-m", "labkit", "predict", "--model", "gpt-13b", "--cluster", "a100x32"]
    check("A prediction", followed(command, tmp_path / "calls"))


@pytest.mark.parametrize("title", titles())
def test_each_function_of_a_trip_exists(title: str) -> None:
    for _, place in trip(title):
        file, _, name = place.partition(": ")
        body = ast.parse((TREE / file).read_text()).body
        for part in name.split("."):
            found = [node for node in body if getattr(node, "name", None) == part]
            assert found, place
            body = found[0].body  # type: ignore[attr-defined]  # a class or a function
