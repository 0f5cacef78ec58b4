"""Marks after the judge: late penalties, extensions, manual changes, files for learning platforms."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest
import second_exercise
from grading import grade  # beside this file
from nbgrader.api import Gradebook

from autograder.batch.status import status_of
from autograder.course_folder import CONFIG_FILE, Course
from autograder.marks.export import FORMATS
from autograder.marks.late import BrokenExtensions, LateRule, read_extensions
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
DUE = datetime(2026, 3, 1, 12)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    tree = tmp_path / "tree"
    second_exercise.add_to(tree)
    source = tree / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3), source)
    monkeypatch.setenv("LABKIT_ROOT", str(tree))
    (tree / "course").mkdir()
    (tree / "course" / CONFIG_FILE.name).write_text("c = get_config()\nc.LateRule.percent_per_day = 10\n")
    course = Course(tree / "course")
    course.release(PHASE)
    return course


def hand_in(course: Course, student: str, late: timedelta) -> None:
    released = course.released(PHASE, NOTEBOOK)
    path = course.submit(student, PHASE, NOTEBOOK, with_module(released, NAME, second_exercise.SOLUTION))
    (path.parent / "timestamp.txt").write_text((DUE + late).strftime("%Y-%m-%d %H:%M:%S UTC"))


def gradebook(course: Course) -> Gradebook:
    return Gradebook(f"sqlite:///{course.folder}/gradebook.db")


def table(course: Course, *options: str) -> list[dict[str, str]]:
    """Return what `labkit grades` writes."""
    to = course.folder / "grades.csv"
    command = [sys.executable, "-m", "labkit", "grades", "--to", str(to), "--course", str(course.folder), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return rows_of(to)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scores(course: Course) -> dict[str, float | None]:
    found = course.export(course.folder / "all.csv", [PHASE])
    return {one.learner.id: one.score for one in found}


def test_lateness_extensions_and_changes_by_hand(course: Course) -> None:
    with gradebook(course) as open_book:
        open_book.update_or_create_assignment(PHASE, duedate=DUE)
        open_book.add_student("absent", first_name="=cmd()", last_name="Ab,sent", email="a@example.org")
    hand_in(course, "in_time", -timedelta(minutes=1))
    hand_in(course, "late", timedelta(hours=25))
    grade(course, PHASE)
    assert scores(course) == {"absent": 0.0, "in_time": 3.0, "late": 2.4}

    until = (DUE + timedelta(hours=24)).replace(tzinfo=UTC).isoformat(" ")
    (course.folder / "extensions.csv").write_text(f"student,assignment,until\nlate,{PHASE},{until}\n")
    with gradebook(course) as open_book:
        mark = open_book.find_grade("grade_pass_it_on", NOTEBOOK, PHASE, "in_time")
        mark.manual_score = 1.5
        open_book.db.commit()
    lines = {line.work.student: line for line in grade(course, PHASE)}
    assert {line.state for line in lines.values()} == {"unchanged"}
    assert (lines["in_time"].earned, lines["in_time"].by_hand, lines["late"].by_hand) == (3.0, 1.5, None)
    assert scores(course) == {"absent": 0.0, "in_time": 1.5, "late": 2.7}

    course.record(PHASE, "in_time", [NOTEBOOK])  # graded again: manual changes stay
    [line] = status_of(course, PHASE, ["in_time"])
    assert (line.earned, line.by_hand, line.look_again) == (3.0, 1.5, True)
    hand_in(course, "absent", timedelta(0))  # not graded yet: no mark, and not 0
    assert scores(course) == {"absent": None, "in_time": 1.5, "late": 2.7}
    course.export(course.folder / "all.csv")
    rows = {row["student_id"]: row for row in rows_of(course.folder / "all.csv")}
    assert rows["late"]["raw_score"] == "3" and rows["late"]["late_submission_penalty"] == "0.3"
    assert rows["absent"]["first_name"] == "'=cmd()" and rows["absent"]["last_name"] == "Ab,sent"
    assert rows["absent"]["score"] == ""

    course.export(course.folder / "canvas.csv", [PHASE], FORMATS["canvas"])
    canvas = rows_of(course.folder / "canvas.csv")
    assert canvas[0] == {
        **{"Student": "Points Possible", "ID": "", "SIS User ID": "", "SIS Login ID": "", "Section": ""},
        PHASE: "3",
    }
    assert {row["SIS Login ID"]: row[PHASE] for row in canvas[1:]}["late"] == "2.7"
    assert canvas[1]["Student"] == "Ab,sent, =cmd()"
    moodle = {row["Username"]: row for row in table(course, "--lms", "moodle")}
    assert moodle["absent"]["Email address"] == "a@example.org" and moodle["in_time"][PHASE] == "1.5"


def test_an_extension_that_cannot_be_read_stops_before_anything_is_graded(course: Course) -> None:
    hand_in(course, "late", timedelta(0))
    (course.folder / "extensions.csv").write_text(f"student,assignment,until\nlate,{PHASE},next week\n")
    with pytest.raises(BrokenExtensions, match="line 2: 'next week' is not a time: write 2027-01-31 23:59:00 UTC"):
        grade(course, PHASE)
    path = course.folder / "other.csv"
    path.write_text(f"student,assignment,until\n\ufeffx,{PHASE},2026-03-01 13:00:00 +0100\n")
    assert read_extensions(path) == {("\ufeffx", PHASE): DUE}
    path.write_bytes(f"student;assignment;until\r\nada;{PHASE};2026-03-01 13:00 +01:00\r\n".encode("utf-16"))
    assert read_extensions(path) == {("ada", PHASE): DUE}, "as Windows' editors and Excel write it"
    path.write_bytes(b"student,assignment,until\nada,p,2026-03-01\nJos\xe9,p,2026-03-01\n")
    with pytest.raises(BrokenExtensions, match="line 3 is not UTF-8 text: save the file as UTF-8"):
        read_extensions(path)
    path.write_text("student,until\nx,2026-03-01\n")
    with pytest.raises(BrokenExtensions, match="line 2: it needs student, assignment, until"):
        read_extensions(path)


def test_the_late_rule() -> None:
    day = 24 * 3600.0
    rule = LateRule(percent_per_day=25, most_percent=60, free_minutes=10)
    late = [600.0, 601.0, day, day + 1, 10 * day]
    assert [rule.late_submission_penalty("x", 8.0, seconds) for seconds in late] == [None, 2.0, 2.0, 4.0, 4.8]
    assert LateRule().late_submission_penalty("x", 8.0, 10 * day) is None
