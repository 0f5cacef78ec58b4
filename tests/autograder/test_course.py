"""A course with a small exercise: odd submissions, feedback pages, and what is refused rather than marked."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import pytest
import second_exercise
from browsers import chromium, new_context
from nbgrader.api import Gradebook
from system_packages import needs_packages

from autograder.course_folder import CONFIG_FILE, Course, CourseFailed
from autograder.marks import new_gradebook
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
SCRIPT = "<script>document.title = 'taken over'</script>"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tree")
    second_exercise.add_to(folder)
    source = folder / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3), source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_ROOT", str(folder))
        yield folder


@pytest.fixture
def course(tree: Path, tmp_path: Path) -> Course:
    course = Course(tmp_path / "course")
    course.release(PHASE)
    return course


def hand_in(course: Course, student: str, module: str) -> Path:
    released = course.released(PHASE, NOTEBOOK)
    return course.submit(student, PHASE, NOTEBOOK, with_module(released, NAME, module))


def scores(course: Course) -> dict[str, float]:
    return {mark.student: mark.score for mark in course.marks(PHASE)}


def page_of(course: Course, student: str) -> Path:
    return course.folder / "feedback" / student / PHASE / f"{NOTEBOOK}.html"


def test_odd_submissions_end_in_a_mark_with_its_reason(course: Course) -> None:
    hand_in(course, "not_json", "").write_bytes(b"{")
    forged = hand_in(course, "forged", "")
    notebook = nbformat.read(forged, as_version=4)
    notebook.cells[4].metadata.nbgrader.points = 1000
    notebook.cells[4].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "1000"}, execution_count=1)]
    nbformat.write(notebook, forged)
    deleted = hand_in(course, "deleted", second_exercise.SOLUTION)
    notebook = nbformat.read(deleted, as_version=4)
    del notebook.cells[3:]
    nbformat.write(notebook, deleted)
    course.autograde(PHASE)
    course.feedback(PHASE)
    assert scores(course) == {"not_json": 0.0, "forged": 0.0, "deleted": 3.0}
    assert "The file is not a notebook" in page_of(course, "not_json").read_text()


def test_the_feedback_page_shows_each_check_and_runs_nothing_of_the_learners(course: Course, tmp_path: Path) -> None:
    needs_packages("chromium")
    module = second_exercise.SENDS_TWICE + f'\nprint("""{SCRIPT}""")\n# </pre>{SCRIPT}\n'
    notebook = nbformat.read(hand_in(course, "learner", module), as_version=4)
    notebook.cells[3].outputs = [nbformat.v4.new_output("display_data", {"text/html": SCRIPT})]
    notebook.cells[0].source = SCRIPT
    course.submit("learner", PHASE, NOTEBOOK, notebook)
    course.autograde(PHASE)
    course.feedback(PHASE)
    with chromium() as browser:
        page = new_context(browser, viewport={"width": 1200, "height": 900}).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_of(course, "learner").as_uri())
        feedback = page.locator(".labkit-feedback")
        shown, header = feedback.inner_text(), page.locator("header").inner_text()
        box = feedback.bounding_box()
        title = page.title()
        page.screenshot(path=tmp_path / "feedback.png", full_page=True)
    assert asked == [page_of(course, "learner").as_uri()], "the page needs nothing from elsewhere"
    assert "2 of 3 points" in header
    assert "passed" in shown and "the tensor of the neighbour is returned" in shown
    assert "Look at this first: one message from each rank" in shown
    assert "messages: [1, 1, 1]" in shown and "[2, 2, 2]" in shown and "how often a rank sends" in shown
    assert box is not None and 400 < box["width"] < 1200 and box["height"] > 80
    assert title == f"{NOTEBOOK}: 2 of 3 points"
    assert "The timeline of your run" in shown


def test_a_notebook_whose_points_are_not_the_rubrics_is_not_marked(course: Course, tree: Path) -> None:
    hand_in(course, "learner", second_exercise.SOLUTION)
    rubric = tree / "autograder" / "course" / NAME / "rubric.py"
    text = rubric.read_text()
    rubric.write_text(text.replace("points=1", "points=2"))
    try:
        with pytest.raises(CourseFailed, match=r"the notebook says 3 points, its rubric 4"):
            course.autograde(PHASE)
    finally:
        rubric.write_text(text)
    assert scores(course) == {}
    course.autograde(PHASE)  # nothing of the first try is left
    assert scores(course) == {"learner": 3.0}


def test_without_a_sandbox_nothing_is_graded(course: Course) -> None:
    hand_in(course, "learner", second_exercise.SOLUTION)
    environment = {**os.environ, "LABKIT_COURSE": str(course.folder)}
    forbids = Path(__file__).with_name("without_namespaces.py")

    def autograde(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(forbids), sys.executable, "-m", "nbgrader", "autograde", PHASE, *options]
        return subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)

    refused = autograde()
    assert refused.returncode == 1 and "No sandbox for learners' code" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert scores(course) == {}
    trusting = autograde("--Sandbox.allow_none=True")
    assert trusting.returncode == 0, trusting.stderr
    assert scores(course) == {"learner": 3.0}


def test_a_submission_without_a_release_is_refused(course: Course) -> None:
    hand_in(course, "learner", second_exercise.SOLUTION)
    shutil.rmtree(course.folder / "release")
    with pytest.raises(CourseFailed, match="nbgrader generate_assignment"):
        course.autograde(PHASE)
    assert scores(course) == {}


def test_a_new_gradebook_is_as_nbgrader_makes_it(tmp_path: Path) -> None:
    tables = []
    for name in ("ours", "nbgraders"):
        path = tmp_path / f"{name}.db"
        if name == "ours":
            new_gradebook.begin(f"sqlite:///{path}")
            assert path.is_file()
        Gradebook(f"sqlite:///{path}").close()
        with closing(sqlite3.connect(path)) as database:
            found = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            tables.append((set(found), database.execute("SELECT * FROM alembic_version").fetchall()))
    assert tables[0] == tables[1] and len(tables[0][0]) > 10
    new_gradebook.begin(f"sqlite:///{tmp_path}/no/such/folder.db")
    new_gradebook.begin("sqlite://")
