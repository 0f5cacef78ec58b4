"""Submissions of which nothing can be read: table and feedback say why. All are judged in the order of arrival."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
import second_exercise
from grading import grade  # beside this file

from autograder.batch.status import status_of
from autograder.course_folder import Course
from autograder.intake import read_release, receive
from autograder.intake.keeping import write_json
from autograder.intake.stamps import Record, in_utc, told_time
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from autograder.verdicts.store import GradingTask

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
FILE = f"{NOTEBOOK}.ipynb"
DAY = "2026-03-01"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    tree = tmp_path / "tree"
    second_exercise.add_to(tree)
    nbformat.write(
        second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3), tree / "notebooks" / PHASE / FILE
    )
    monkeypatch.setenv("LABKIT_ROOT", str(tree))
    course = Course(tree / "course")
    course.release(PHASE)
    return course


def hand_in(course: Course, student: str, time: str = f"{DAY} 12:00:00 UTC") -> Path:
    work = with_module(course.released(PHASE, NOTEBOOK), NAME, second_exercise.SOLUTION)
    path = course.submit(student, PHASE, NOTEBOOK, work)
    (path.parent / "timestamp.txt").write_text(time)
    return path


def with_conflict(path: Path) -> None:
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, "<<<<<<< HEAD\n", "=======\n", ">>>>>>> theirs\n", *rest]))


BROKEN = {
    "conflict": (with_conflict, "git's conflict marks, the first one in line 2"),
    "cut_off": (lambda path: os.truncate(path, path.stat().st_size // 2), "it is cut off in the middle (line "),
    "comma": (lambda path: path.write_text(path.read_text().replace("},\n", "}\n", 1)), "a comma is missing (line "),
    "empty": (lambda path: path.write_text(""), "The file is not a notebook: it is empty"),
    "page": (lambda path: path.write_text("<html></html>"), "it is a page of the web"),
    "renamed": (lambda path: path.rename(f"{path}.txt"), f"`{FILE}.txt` was not read: the name of a notebook ends in"),
    "copies": (
        lambda path: (path.with_name(f"{NOTEBOOK}-2.ipynb").write_text("{}"), path.rename(f"{path.parent}/my_{FILE}")),
        "more than one file that it can be",
    ),
    "absent": (lambda path: path.unlink(), "The submission is empty."),
    "closed": (lambda path: path.chmod(0), "its permissions do not let anybody read it"),
    "link": (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "it is a link"),
}


@pytest.mark.parametrize("student", [name for name in BROKEN if name != "closed"])
def test_the_reason_is_kept_with_the_notebook(course: Course, student: str) -> None:
    path = hand_in(course, student)
    change, reason = BROKEN[student]
    change(path)
    notebook = receive(path.parent, read_release(course.folder / "release" / PHASE)).notebooks[NOTEBOOK]
    assert reason in notebook.metadata.labkit.missing[NAME]


def test_marks_of_a_conflict_in_a_cell_are_noted(course: Course) -> None:
    path = hand_in(course, "ada")
    work = with_module(course.released(PHASE, NOTEBOOK), NAME, "<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n")
    nbformat.write(work, path)
    intake = receive(path.parent, read_release(course.folder / "release" / PHASE))
    assert f"The cell `%%exercise {NAME}` has git's conflict marks." in intake.notes


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_the_table_and_the_feedback_say_why_nothing_was_read(course: Course) -> None:
    broken = {name: BROKEN[name] for name in ("conflict", "cut_off", "renamed")}
    for student, (change, _) in broken.items():
        change(hand_in(course, student))
    late = hand_in(course, "garbage", "sometime")
    lines = {line.work.student: line for line in grade(course, PHASE, workers=2)}
    for student, (_, reason) in broken.items():
        assert reason in lines[student].why, student
    assert "`timestamp.txt` has no valid time" in lines["garbage"].time_problem and lines["garbage"].earned == 3.0
    assert {line.work.student: (line.why, line.time_problem) for line in status_of(course, PHASE)} == {
        student: (line.why, line.time_problem) for student, line in lines.items()
    }
    course.feedback(PHASE)
    for student, (_, reason) in broken.items():
        page = (course.folder / "feedback" / student / PHASE / f"{NOTEBOOK}.html").read_text()
        assert reason.replace("'", "&#39;") in page and "cell is empty" not in page, student
    assert "has no valid time" in (course.folder / "feedback" / "garbage" / PHASE / f"{NOTEBOOK}.html").read_text()
    graded = (course.folder / "autograded" / "garbage" / PHASE / "timestamp.txt").read_text()
    assert told_time(graded) == in_utc((late.parent / "timestamp.txt").stat().st_ctime)


def arrive(course: Course, student: str, minute: int, claimed: str) -> None:
    """Hand in as `nbgrader collect` does, with the record of a time of receipt."""
    path = hand_in(course, student, claimed)
    received, claim = told_time(f"{DAY} 12:{minute:02}:00 UTC"), told_time(claimed)
    assert received and claim
    folder = course.folder / "collected" / student / PHASE
    folder.mkdir(parents=True)
    record = Record(student, PHASE, received, claim, received, student, True, "", path.parent.name)
    write_json(folder / "current.json", record.to_json())


def test_who_handed_in_first_is_judged_first(course: Course) -> None:
    arrive(course, "ada", 3, f"{DAY} 12:03:00 UTC")
    arrive(course, "zoe", 1, f"{DAY} 12:01:00 UTC")
    arrive(course, "bob", 2, "2099-01-01 00:00:00 UTC")  # a clock that is wrong
    hand_in(course, "copied", f"{DAY} 12:00:30 UTC")
    order: list[str] = []

    class Began(Exception):
        pass

    def on_start(todo: list[GradingTask]) -> None:
        order.extend(work.student for work in todo)
        raise Began

    assert course.by_arrival(PHASE, course.students(PHASE)) == ["copied", "zoe", "bob", "ada"]
    if Sandbox().available:
        with pytest.raises(Began):
            grade(course, PHASE, ["ada", "bob", "copied", "zoe"], on_start=on_start)
        assert order == ["copied", "zoe", "bob", "ada"]


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_nbgrader_judges_in_the_order_of_arrival_too(course: Course) -> None:
    for student, minute in (("ada", 2), ("zoe", 1)):
        arrive(course, student, minute, f"{DAY} 12:00:00 UTC")
    log = course.autograde(PHASE)
    assert log.index("received/zoe/") < log.index("received/ada/")
