"""A gradebook that another program has locked: commands wait for it, say so, and end readably."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import nbformat
import pytest
import second_exercise
from clocks import ManualClock
from nbgrader.api import Gradebook

from autograder import gradebook_lock
from autograder.batch import command
from autograder.batch.launch import WorkerForkServer, begin
from autograder.course_folder import CONFIG_FILE, Course
from autograder.gradebook_lock import GradebookLocked, patience
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
needs_sandbox = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    tree = tmp_path / "tree"
    second_exercise.add_to(tree)
    source = tree / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3), source)
    monkeypatch.setenv("LABKIT_ROOT", str(tree))
    course = Course(tree / "course")
    course.release(PHASE)
    course.submit("ada", PHASE, NOTEBOOK, with_module(course.released(PHASE, NOTEBOOK), NAME, second_exercise.SOLUTION))
    return course


@contextmanager
def locked(course: Course) -> Iterator[Callable[[], None]]:
    """Hold the gradebook's lock as a program that writes; yields what releases it."""
    with closing(sqlite3.connect(course.folder / "gradebook.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield lambda: other.rollback()


def autograde(course: Course, clock: ManualClock) -> int:
    begin()
    forkserver = WorkerForkServer(forked=True)
    try:
        return command.main(
            PHASE,
            [],
            course=course.folder,
            workers=1,
            again=False,
            only_errors=False,
            status=False,
            json=False,
            forkserver=forkserver,
            clock=clock,
        )
    finally:
        forkserver.close()


class WaitingClock(ManualClock):
    """A clock that moves by so many seconds whenever it is read."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def __call__(self) -> float:
        now = super().__call__()
        self.advance(self._seconds)
        return now


@needs_sandbox
def test_autograde_waits_says_so_and_ends_with_one_message(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(course):
        status = autograde(course, WaitingClock(gradebook_lock.LIMIT_SECONDS / 3))
    shown = capsys.readouterr()
    path = course.folder / "gradebook.db"
    assert status == 2
    assert shown.out.startswith(f"waiting up to 120 s for the gradebook {path}, locked by ")
    (message,) = shown.err.strip().splitlines()
    assert (
        message.startswith(f"labkit: the gradebook {path} has been locked for 120 s") and "nothing is lost" in message
    )
    assert "Traceback" not in shown.err + shown.out
    assert autograde(course, ManualClock()) == 0
    assert [mark.score for mark in course.marks(PHASE)] == [3.0]


def test_what_is_released_in_time_is_written(course: Course) -> None:
    announced: list[str] = []
    with locked(course) as release:

        def say(text: str) -> None:
            announced.append(text)
            release()

        with patience(ManualClock(), say), Gradebook(f"sqlite:///{course.folder}/gradebook.db") as gradebook:
            gradebook.update_or_create_student("ada")
    assert len(announced) == 1
    with Gradebook(f"sqlite:///{course.folder}/gradebook.db") as gradebook:
        assert [student.id for student in gradebook.students] == ["ada"]


def test_a_commit_waits_for_a_reader(course: Course) -> None:
    url, announced = f"sqlite:///{course.folder}/gradebook.db", list[str]()
    with closing(sqlite3.connect(course.folder / "gradebook.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM student").fetchall()  # a shared lock, until the transaction ends

        def say(text: str) -> None:
            announced.append(text)
            reader.rollback()

        with patience(ManualClock(), say), Gradebook(url) as gradebook:
            gradebook.update_or_create_student("ada")
            assert [student.id for student in gradebook.students] == ["ada"]
    assert len(announced) == 1


def test_grades_wait_too(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(course):
        to, clock = course.folder / "grades.csv", WaitingClock(gradebook_lock.LIMIT_SECONDS)
        assert command.grades([], to, "csv", course.folder, clock) == 2
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2 and shown[0].startswith("waiting up to 120 s") and "has been locked for 120 s" in shown[1]


def test_a_recording_that_is_stopped_by_a_lock_is_no_error_of_a_submission(course: Course) -> None:
    with locked(course), patience(WaitingClock(gradebook_lock.LIMIT_SECONDS), str), pytest.raises(GradebookLocked):
        course.record(PHASE, "ada", [NOTEBOOK])


NBGRADER = """
import sys
from nbgrader.apps.nbgraderapp import main
from autograder import gradebook_lock
gradebook_lock.LIMIT_SECONDS = 0
sys.exit(main())
"""


def test_a_command_of_nbgrader_ends_with_one_message(course: Course) -> None:
    words = ["db", "assignment", "add", PHASE, "--duedate=2027-03-01 12:00:00 UTC"]
    environment = {**os.environ, "LABKIT_COURSE": str(course.folder)}
    with locked(course):
        done = subprocess.run(
            [sys.executable, "-P", "-c", NBGRADER, *words],
            cwd=CONFIG_FILE.parent,
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "nbgrader: the gradebook" in done.stderr.splitlines()[-1]
