"""Wheels of labkit and of the autograder, used outside of the checkout: only the autograder's has hidden parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from autograder.judge import hidden_rubric
from labkit.catalogue import all_exercises, root
from labkit.checks import visible_rubric
from labkit.questions import questions_of

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
HIDDEN = ("rubric.py", "mutants.py", "variants.py", "/mutants/", "/variants/")
OUTSIDE = """
import json
from pathlib import Path

import autograder
import labkit
from autograder.judge import hidden_rubric
from labkit.catalogue import all_exercises
from labkit.checks import visible_rubric
from labkit.questions import questions_of

print(json.dumps({
    "places": [str(Path(package.__file__).parents[1]) for package in (labkit, autograder)],
    "exercises": {
        one.name: [visible_rubric(one).points, hidden_rubric(one).points, len(questions_of(one))]
        for one in all_exercises()
    },
}))
"""


def built(source: Path, *parts: str, into: Path) -> Path:
    """The wheel of a copy of these parts of `source`, since setuptools leaves files in the tree that it builds."""
    tree = into / "tree"
    tree.mkdir(parents=True)
    for part in (source / name for name in parts):
        if part.is_dir():
            shutil.copytree(part, tree / part.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(part, tree)
    done = subprocess.run([sys.executable, "-c", BUILD, str(into)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, grader = tmp_path_factory.mktemp("wheels"), root() / "autograder"
    own = [path.name for path in grader.iterdir() if path.name != "tests"]
    learners = built(root(), "labkit", "pyproject.toml", "README.md", "LICENSE", into=folder / "labkit")
    return learners, built(grader, *own, into=folder / "autograder")


def test_a_learners_wheel_has_all_of_their_part_and_nothing_hidden(wheels: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(wheels[0]).namelist())
    wanted = {
        str(path.relative_to(root()))
        for path in (root() / "labkit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - names == set()
    assert [name for name in names if name.startswith(("autograder", "solutions", "tests"))] == []
    assert [name for name in names if "/course/" in name and any(part in name for part in HIDDEN)] == []


def test_an_instructors_wheel_has_every_rubric_mutant_and_variant(wheels: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(wheels[1]).namelist())
    course = (root() / "autograder/course").rglob("*.py")
    assert {str(path.relative_to(root())) for path in course if "__pycache__" not in path.parts} - names == set()


def test_both_work_outside_of_the_checkout(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LABKIT_")}
    environment |= {"PYTHONPATH": str(tmp_path / "site"), "LABKIT_ROOT": str(tmp_path / "course")}
    (tmp_path / "course").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["places"] == [str(tmp_path / "site")] * 2
    assert seen["exercises"] == {
        one.name: [visible_rubric(one).points, hidden_rubric(one).points, len(questions_of(one))]
        for one in all_exercises()
    }
