"""What the lab fails to judge: the page, the table and the status say the same words, and no points are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import second_exercise
from nbgrader.api import Gradebook

from autograder.course_folder import CONFIG_FILE, Course
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from labkit.cli import main
from labkit.lab_failed import LAB_FAILED

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

PHASE, NOTEBOOK, NAME = second_exercise.PHASE, second_exercise.NOTEBOOK, second_exercise.NAME
WORDS = "The lab failed; this costs no points"
COUNTS = "    expect([run.trace.messages_sent"
"""The line of the rubric before which the lab's own code will fail."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lab"
    second_exercise.add_to(folder)
    notebook = second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3)
    nbformat.write(notebook, folder / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb")
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    monkeypatch.setenv("COLUMNS", "200")  # no cell of a table is folded
    return folder


@pytest.fixture
def course(lab: Path, tmp_path: Path) -> Course:
    course = Course(tmp_path / "course")
    course.release(PHASE)
    return course


def hand_in(course: Course, module: str) -> None:
    course.submit("ada", PHASE, NOTEBOOK, with_module(course.released(PHASE, NOTEBOOK), NAME, module))


def nbgrader(course: Course, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LABKIT_COURSE": str(course.folder)}
    command = [sys.executable, "-m", "nbgrader", *words]
    return subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)


def broken(lab: Path) -> str:
    """Break the exercise's rubric; return its text before."""
    rubric = lab / "autograder" / "course" / NAME / "rubric.py"
    before = rubric.read_text()
    rubric.write_text(before.replace(COUNTS, f"    no_such_name\n{COUNTS}"))
    return before


def repaired(lab: Path, text: str) -> None:
    (lab / "autograder" / "course" / NAME / "rubric.py").write_text(text)


def page_of(course: Course) -> str:
    return (course.folder / "feedback" / "ada" / PHASE / f"{NOTEBOOK}.html").read_text()


def status(course: Course, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    main(["autograde", PHASE, "--course", str(course.folder), *words])
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


def test_nbgraders_commands_say_that_the_lab_failed_and_how_to_judge_again(
    course: Course, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hand_in(course, second_exercise.SENDS_TWICE)
    whole = broken(lab)
    graded = nbgrader(course, "autograde", PHASE)
    assert graded.returncode != 0
    assert f"{NOTEBOOK} of ada: CannotJudge: 'one message from each rank': {LAB_FAILED} (NameError)" in graded.stderr
    assert f"`labkit autograde {PHASE} --retry`" in graded.stderr

    fed_back = nbgrader(course, "generate_feedback", PHASE)
    assert fed_back.returncode == 0, fed_back.stderr
    assert f"{NOTEBOOK} of ada: {LAB_FAILED}; `labkit autograde {PHASE} --retry` judges it again" in fed_back.stderr
    page = page_of(course)
    assert WORDS in page and "not judged yet" in page
    for word in ("FAIL", "failed:", "one message", "how often", "NameError", "0 of", "points</title>"):
        assert word not in page, word
    folder = course.folder / "feedback" / "ada" / PHASE
    assert {"timestamp.txt", "submission_secret.txt"} <= {path.name for path in folder.iterdir()}, "to be returned"

    assert [grade.score for grade in course.grades(PHASE)] in ([], [None]), "no mark, rather than 0"
    shown = status(course, capsys, "--status")
    assert f"error: {LAB_FAILED}" in shown and f"'one message from each rank': {LAB_FAILED} (NameError)" in shown
    assert f"`labkit autograde {PHASE} --retry` tries these alone" in shown

    repaired(lab, whole)
    assert "graded" in status(course, capsys, "--retry", "--workers", "1")
    assert not folder.exists(), "the page of before is gone"
    assert nbgrader(course, "generate_feedback", PHASE).returncode == 0
    assert LAB_FAILED not in page_of(course).lower() and "2 of 3 points" in page_of(course)


def test_an_earlier_verdict_stays_with_a_note(course: Course, lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hand_in(course, second_exercise.SENDS_TWICE)
    assert "graded" in status(course, capsys, "--workers", "1")
    whole = broken(lab)
    hand_in(course, second_exercise.SOLUTION)
    said = status(course, capsys, "--workers", "1")
    assert f"error: {LAB_FAILED}" in said
    course.feedback(PHASE)
    assert f"Not judged again: {LAB_FAILED}" in page_of(course) and "2 of 3 points" in page_of(course)
    assert [mark.score for mark in course.marks(PHASE)] == [2.0], "nothing is lost"
    repaired(lab, whole)
    assert "graded" in status(course, capsys, "--workers", "1")
    course.feedback(PHASE)
    assert "3 of 3 points" in page_of(course) and "Not judged" not in page_of(course)
    with Gradebook(f"sqlite:///{course.folder}/gradebook.db") as gradebook:
        assert gradebook.find_submission(PHASE, "ada").score == 3.0
