"""nbgrader's own autograde on a class of hostile folders: it sees only what intake made of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import second_exercise
from nbgrader.apps.api import NbGraderAPI
from nbgrader.auth import Authenticator
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeReleaseFeedback

from autograder.course_folder import Course, CourseFailed
from autograder.intake.autograde import ReceivedExporter
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
OURS = {f"{NOTEBOOK}.ipynb", "timestamp.txt", "submission_secret.txt"}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    folder = tmp_path_factory.mktemp("course") / "C++ (Übung)"  # nbgrader looks for paths by regular expressions
    folder.mkdir()
    second_exercise.add_to(folder / "tree")
    source = folder / "tree" / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3), source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_ROOT", str(folder / "tree"))
        course = Course(folder / "course")
        course.release(PHASE)
        yield course


def scores(course: Course) -> dict[str, float]:
    return {mark.student: mark.score for mark in course.marks(PHASE)}


def hand_in(course: Course, student: str, module: str = "") -> Path:
    work = with_module(course.released(PHASE, NOTEBOOK), NAME, module)
    return course.submit(student, PHASE, NOTEBOOK, work).parent


def test_whatever_lies_in_a_folder_each_learner_gets_a_mark(course: Course) -> None:
    secret = course.folder / "gradebook.csv"
    secret.write_text("everybody's marks")
    shadows = hand_in(course, "shadows", second_exercise.SOLUTION)
    for name in ("torch.py", "conftest.py", "sitecustomize.py"):
        (shadows / name).write_text("raise SystemExit('taken over')")
    links = hand_in(course, "links")
    (links / "data.csv").symlink_to(secret)
    (links / "whole_course").symlink_to(course.folder)
    pipes = hand_in(course, "pipes")
    (pipes / "timestamp.txt").unlink()
    os.mkfifo(pipes / "timestamp.txt")
    os.mkfifo(pipes / "data.csv")
    (hand_in(course, "bad_time") / "timestamp.txt").write_text("not a time")
    (hand_in(course, "nothing") / f"{NOTEBOOK}.ipynb").unlink()
    (hand_in(course, "renamed") / f"{NOTEBOOK}.ipynb").rename(shadows.parents[1] / "renamed" / PHASE / "homework.ipynb")
    folder = hand_in(course, "folder")
    (folder / f"{NOTEBOOK}.ipynb").unlink()
    (folder / f"{NOTEBOOK}.ipynb").mkdir()
    (course.folder / "submitted" / "copycat").mkdir()
    (course.folder / "submitted" / "copycat" / PHASE).symlink_to(shadows)
    hand_in(course, "new\nline")
    log = course.autograde(PHASE)
    learners = {"shadows", "links", "pipes", "bad_time", "nothing", "renamed", "folder", "copycat"}
    assert {**dict.fromkeys(learners, 0.0), "shadows": 3.0}.items() <= scores(course).items()
    assert "Not graded, no learner has such a name: new?line" in log
    for student in learners:
        folder = course.folder / "autograded" / student / PHASE
        assert {path.name for path in folder.iterdir()} == OURS, student
        assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())
    course.feedback(PHASE)
    page = (course.folder / "feedback" / "nothing" / PHASE / f"{NOTEBOOK}.html").read_text()
    assert "The submission is empty." in page
    # a page with old marks is removed, and normal states cause no warning
    course.record(PHASE, "nothing", [NOTEBOOK])
    assert not (course.folder / "feedback" / "nothing" / PHASE).exists()
    assert (course.folder / "feedback" / "links" / PHASE).exists()
    course.feedback(PHASE)
    assert (course.folder / "feedback" / "nothing" / PHASE / f"{NOTEBOOK}.html").exists()
    assert "timestamp" not in course.autograde(PHASE, "bad_time")
    formgrader = NbGraderAPI(CourseDirectory(root=str(course.folder)))
    assert formgrader.get_autograded_students(PHASE) >= learners
    # a submission without nbgrader's stamps does not stop the feedback of the others
    exchange = course.folder / "exchange" / "c"
    exchange.mkdir(parents=True)
    coursedir = CourseDirectory(root=str(course.folder), course_id="c", assignment_id=PHASE)
    ExchangeReleaseFeedback(coursedir=coursedir, root=str(exchange.parent), authenticator=Authenticator()).start()
    assert len(list((exchange / "feedback").glob("*.html"))) == len(learners)


def test_what_fails_on_our_side_is_no_mark_and_is_tried_again(course: Course) -> None:
    hand_in(course, "unlucky")
    course.folder.joinpath("received").mkdir(exist_ok=True)
    blocked = course.folder / "received" / "unlucky"
    blocked.write_text("")  # where a folder must be made
    with pytest.raises(CourseFailed, match="There was an error processing assignment"):
        course.autograde(PHASE, "unlucky")
    assert "unlucky" not in scores(course)
    blocked.unlink()
    course.autograde(PHASE, "unlucky")
    assert scores(course)["unlucky"] == 0.0


def test_a_time_in_the_future_hides_no_later_submission(course: Course) -> None:
    for module, year, score in (("", 2099, 0.0), (second_exercise.SOLUTION, 2026, 3.0)):
        (hand_in(course, "skewed", module) / "timestamp.txt").write_text(f"{year}-03-01 12:00:00 UTC")
        course.autograde(PHASE, "skewed")
        assert scores(course)["skewed"] == score
    assert "Skipping existing assignment" in course.autograde(PHASE, "skewed")


def test_nbgraders_own_converter_gets_no_exporter() -> None:
    with pytest.raises(NbGraderException, match="nbgrader's own Autograde"):
        ReceivedExporter(parent=Autograde())
