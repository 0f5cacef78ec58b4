"""Each row of docs/capabilities.md is true: its place is in the tree, and its command shows what it says."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.catalogue import all_exercises
from labkit.cli import main, parser

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "capabilities.md"
SITES = ROOT / "docs" / "sites.md"
TEST = "./lab test "
RUN, TESTED, IN_ALL, NOT_HERE = "run", "test", " of `--all`", "no: needs "
"""Words of the last column."""


@dataclass(frozen=True)
class Row:
    """A row of one of the page's tables."""

    capability: str
    where: tuple[str, ...]
    command: str
    prints: str
    """Text of the command's output."""
    here: str

    @property
    def names(self) -> set[str]:
        """Names of Python in the capability."""
        return {word for word in re.findall(r"`([^`]+)`", self.capability) if word.isidentifier()}


def rows() -> Iterator[Row]:
    _, _, tables = PAGE.read_text().partition("\n## ")
    for line in tables.splitlines():
        cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        if not line.startswith("| ") or cells[0] == "capability":
            continue
        capability, where, command, here = cells
        shown = re.fullmatch(r"`([^`]+)`(?: prints `([^`]+)`)?", command)
        assert shown, line
        yield Row(capability, tuple(re.findall(r"`([^`]+)`", where)), shown[1], shown[2] or "", here)


ROWS = list(rows())


def test_each_row_has_a_place_in_the_tree_a_command_and_a_word_for_here() -> None:
    assert len(ROWS) > 200
    for row in ROWS:
        assert row.where and all((ROOT / path).exists() for path in row.where), row
        if row.here.startswith(RUN):
            assert row.here in (RUN, RUN + IN_ALL) and row.prints, row
        elif row.here.startswith(TESTED):
            assert row.here in (TESTED, TESTED + IN_ALL) and row.command.startswith(TEST), row
        else:
            assert row.here.startswith(NOT_HERE), row


def test_each_capability_has_one_row() -> None:
    capabilities = [row.capability for row in ROWS]
    assert len(capabilities) == len(set(capabilities))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def definitions(path: Path) -> set[str]:
    """Names that a module, or those of a folder, define or import."""
    found = set()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def test_names_of_an_exercise_are_defined_where_the_row_says() -> None:
    for row in ROWS:
        modules = [path for path in row.where if path.startswith(("solutions/", "labkit/course/"))]
        if modules:
            assert row.names <= set[str]().union(*(definitions(ROOT / path) for path in modules)), row


def test_each_public_name_and_each_notebook_of_the_course_has_a_row() -> None:
    named: dict[str, set[str]] = {}
    for row in ROWS:
        for path in row.where:
            named.setdefault(path, set()).update(row.names)
    for exercise in all_exercises():
        path = exercise.paths["solution"].relative_to(ROOT).as_posix()
        missing = set(exercise.public_names) - named.get(path, set())
        assert not missing, f"{path}: no row has {missing}"
        assert exercise.notebook.relative_to(ROOT).as_posix() in named, exercise


def test_each_command_of_the_shell_has_a_row() -> None:
    known = parser().commands()
    texts = [row.capability for row in ROWS] + [f"`{row.command}`" for row in ROWS if not row.command.startswith(TEST)]
    assert set(re.findall(r"`(?:labkit|\./lab) ([\w-]+)", "\n".join(texts))) == set(known)


def marks_of(node_id: str) -> str:
    """The marks of a test and of its module, as text."""
    path, _, name = node_id.partition("::")
    assert re.fullmatch(r"(?:autograder/)?tests/(?:\w+/)*test_\w+\.py", path) and name.startswith("test_"), node_id
    body = parsed(ROOT / path).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1, f"there is no test {node_id}"
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    marks = [node.value for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]
    return "\n".join(map(ast.unparse, [*marks, *found[0].decorator_list]))


def test_each_test_that_a_row_names_runs_where_the_row_says() -> None:
    """Nothing is collected: a change of nearly any file reaches this module."""
    shown = [row for row in ROWS if row.command.startswith(TEST)]
    assert len(shown) > 200
    for row in shown:
        target = row.command.removeprefix(TEST)
        if target.endswith(".ipynb"):
            assert (ROOT / target).is_file() and row.here == TESTED, row
            continue
        marks = marks_of(target)
        # not the mark of one of its parameters
        in_all = re.search(r"(?<!marks=)pytest\.mark\.exhaustive", marks) is not None
        assert "mark.skip(" not in marks and in_all == (row.here == TESTED + IN_ALL), f"{row}\n{marks}"
        assert ("needs_a_gpu" in marks) == (row.here == NOT_HERE + "a GPU"), f"{row}\n{marks}"


def test_what_cannot_run_here_is_listed_with_its_command() -> None:
    _, _, listed = SITES.read_text().partition("## What could not be run here")
    commands = re.findall(r"`([^`]+)`", listed.partition("\n## ")[0])
    absent = [row for row in ROWS if row.here.startswith(NOT_HERE)]
    assert absent and [row for row in absent if row.command not in commands] == []


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.command, marks=[pytest.mark.exhaustive] if row.here == RUN + IN_ALL else [])
        for row in ROWS
        if row.here.startswith(RUN)
    ],
)
def test_a_command_shows_its_capability(
    row: Row, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    program, *arguments = shlex.split(row.command)
    if program == "labkit":
        status, printed = main(arguments), capsys.readouterr().out
    else:
        assert program == "python", row
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        status, printed = done.returncode, done.stdout
    assert status == 0 and row.prints in printed, f"{row}\n{printed}"
