"""Due dates and lists that instructors give to nbgrader: read as those of the lab, or refused with what to write."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder import instructors_input
from autograder.course_folder import CONFIG_FILE, Course
from autograder.times import InvalidTime, utc_time
from labkit.text_files import UnreadableText, decoded

NOON = datetime(2027, 3, 1, 12)


@pytest.mark.parametrize(
    "text",
    [
        "2027-03-01 12:00:00 UTC",
        "2027-03-01 12:00:00",
        "2027-03-01T12:00",
        "2027-03-01 13:00:00 +01:00",
        "2027-03-01 13:00:00 +0100",
        "2027-03-01T13:00 +01",
        "2027-03-01T13:00:00.0+01:00",
        "2027-03-01 06:30:00 -0530",
        "2027-03-01 12:00:00Z",
        "2027-03-01 12:00:00 utc",
        "2027-03-01 13:00:00 Europe/Berlin",
        " 2027-03-01 07:00:00 EST\n",
    ],
)
def test_a_time_with_an_offset_or_a_zone_is_that_time_in_utc(text: str) -> None:
    assert utc_time(text) == NOON


@pytest.mark.parametrize(
    "text",
    [
        "2027-03-01 12:00:00 CEST",
        "2027-03-01 12:00:00 PST",
        "2027-03-01 12:00:00 +99:00",
        "2027-03-01 12:00:00 ../../etc/passwd",
        "2027-02-30 12:00:00 UTC",
        "01/03/2027",
        "2027-03-01 12 o'clock",
        "next week",
        "",
    ],
)
def test_what_is_not_understood_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidTime, match=r"is not a time: write 2027-01-31 23:59:00 UTC, or \+01:00"):
        utc_time(text)


def test_nbgrader_takes_the_same_times(tmp_path: Path) -> None:
    Course(tmp_path)  # as each of our commands, and each of nbgrader's, does at its start
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        for text in ("2027-03-01 13:00:00 +01:00", "2027-03-01 13:00:00 +0100", "2027-03-01T13:00 +0100"):
            assert gradebook.update_or_create_assignment("phase", duedate=text).duedate == NOON
        later = datetime(2027, 3, 2, tzinfo=UTC)
        assert gradebook.update_or_create_assignment("phase", duedate=later).duedate == datetime(2027, 3, 2)
        with pytest.raises(InvalidTime):
            gradebook.update_or_create_assignment("phase", duedate="2027-03-01 12:00:00 CEST")
        assert gradebook.find_assignment("phase").duedate == datetime(2027, 3, 2), "as before"
        assert gradebook.update_or_create_assignment("phase", duedate=None).duedate is None
    (tmp_path / "timestamp.txt").write_text("2027-03-01 13:00:00 +01:00")
    assert CourseDirectory().get_existing_timestamp(str(tmp_path)) == NOON


def nbgrader(course: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LABKIT_COURSE": str(course)}
    command = [sys.executable, "-m", "nbgrader", *words]
    return subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)


def test_commands_of_nbgrader_take_offsets_and_lists_that_windows_wrote(tmp_path: Path) -> None:
    course = tmp_path / "course"
    done = nbgrader(course, "db", "assignment", "add", "phase", "--duedate=2027-03-01 13:00:00 +01:00")
    assert done.returncode == 0, done.stderr
    refused = nbgrader(course, "db", "assignment", "add", "phase", "--duedate=2027-03-01 13:00:00 CEST")
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert refused.stderr.splitlines()[-1].startswith("nbgrader: '2027-03-01 13:00:00 CEST' is not a time: write 2027")
    learners = tmp_path / "learners.csv"
    learners.write_bytes("id,last_name\r\nada,Lovelace\r\nnoether,Nöther\r\n".encode("utf-16"))
    done = nbgrader(course, "db", "student", "import", str(learners))
    assert done.returncode == 0, done.stderr
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        assert gradebook.find_assignment("phase").duedate == NOON
        assert {student.id: student.last_name for student in gradebook.students} == {
            "ada": "Lovelace",
            "noether": "Nöther",
        }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_text_is_read_in_each_encoding_of_an_editor(encoding: str) -> None:
    assert decoded("eins\r\nzwölf\r\n学生".encode(encoding)) == "eins\nzwölf\n学生"


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(UnreadableText, match="line 2 is not UTF-8 text: save the file as UTF-8"):
        decoded(b"one\ntw\xf6\n")
    with pytest.raises(UnreadableText, match="line 1 is not UTF-16 text"):
        decoded(b"\xff\xfea")
    assert decoded(b"") == "" and instructors_input.parse_utc(None) is None
