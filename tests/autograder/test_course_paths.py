"""A course in a folder whose path has characters of patterns, regular expressions, formats or the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import second_exercise
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory

from autograder.course_folder import CONFIG_FILE, Course
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

PHASE, NOTEBOOK, NAME = second_exercise.PHASE, second_exercise.NOTEBOOK, second_exercise.NAME


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a lab, `lab`, and place for its course."""
    folder = tmp_path / "course [2026] {a} (b)+*# 'q'\"$x"
    second_exercise.add_to(folder / "lab")
    notebook = second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3)
    nbformat.write(notebook, folder / "lab" / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb")
    monkeypatch.setenv("LABKIT_ROOT", str(folder / "lab"))
    return folder


def nbgrader(course: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LABKIT_COURSE": str(course)}
    command = [sys.executable, "-m", "nbgrader", *words]
    return subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_each_step_of_a_course_works_in_a_folder_with_brackets(folder: Path) -> None:
    place, exchange = folder / "course", folder / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    (folder / "lab" / "notebooks" / PHASE / "__pycache__").mkdir()
    (folder / "lab" / "notebooks" / PHASE / "__pycache__" / "left.pyc").touch()
    shared = f"--Exchange.root={exchange}", "--course=c1"

    def step(*words: str) -> None:
        done = nbgrader(place, *words)
        assert done.returncode == 0, (words, done.stderr)

    step("generate_assignment", PHASE)
    course = Course(place)
    assert course.notebooks(PHASE) == [NOTEBOOK]
    assert not (place / "release" / PHASE / "__pycache__").exists(), "ignored, as elsewhere"
    step("release_assignment", PHASE, *shared)
    right = with_module(course.released(PHASE, NOTEBOOK), NAME, second_exercise.SOLUTION)
    inbound = exchange / "c1" / "inbound" / f"root+{PHASE}+2026-11-30 10:00:00.000000 UTC+abc"
    inbound.mkdir()
    nbformat.write(right, inbound / f"{NOTEBOOK}.ipynb")
    step("collect", PHASE, "--ExchangeCollect.check_owner=False", *shared)
    step("autograde", PHASE)
    assert [(mark.student, mark.score) for mark in course.marks(PHASE)] == [("root", 3.0)]
    step("generate_feedback", PHASE)
    assert "3 of 3 points" in (place / "feedback" / "root" / PHASE / f"{NOTEBOOK}.html").read_text()
    step("release_feedback", PHASE, *shared)
    assert len(list((exchange / "c1" / "feedback").glob("*.html"))) == 1
    api = NbGraderAPI(CourseDirectory(config=course.config), config=course.config)  # as the formgrader does
    assert (api.get_source_assignments(), api.get_submitted_students(PHASE)) == ({PHASE}, {"root"})
    assert [notebook["name"] for notebook in api.get_notebooks(PHASE)] == [NOTEBOOK]


@pytest.mark.parametrize(("name", "odd"), [("what?", "?"), ("100%20", "%"), ("%?", "% and ?")])
def test_a_folder_where_nbgrader_finds_no_gradebook_is_refused_at_once(tmp_path: Path, name: str, odd: str) -> None:
    place = tmp_path / name / "course"
    said = f"{place}: nbgrader finds no gradebook in a folder with {odd} in its path: rename it\n"
    done = nbgrader(place, "generate_assignment", PHASE)
    assert (done.returncode, done.stderr) == (2, said)
    assert not place.exists()
    place.mkdir(parents=True)
    command = [sys.executable, "-m", "labkit", "autograde", PHASE, "--course", str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, said) and not any(place.iterdir())
