"""A course whose assignment changes while there are submissions: no release is lost, and no mark."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import pytest
import second_exercise
from nbformat.v4 import new_markdown_cell
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory

from autograder.batch.lock import grading_alone
from autograder.course_folder import CONFIG_FILE, Course, CourseFailed
from autograder.gradebook_lock import GradebookLocked, patience
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from autograder.verdicts.store import GradingTask, VerdictStore

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

PHASE, FIRST, SECOND = second_exercise.PHASE, second_exercise.NOTEBOOK, "102_pass_it_far"
RIGHT, TWO_OF_THREE = second_exercise.SOLUTION, second_exercise.SENDS_TWICE
EXERCISES = {FIRST: (second_exercise.NAME, RIGHT, 3), SECOND: (second_exercise.FAR, second_exercise.FAR_SOLUTION, 2)}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lab with two exercises, whose notebooks are not there yet."""
    folder = tmp_path / "lab"
    second_exercise.add_to(folder)
    second_exercise.add_third_to(folder)
    source_of(folder, FIRST).unlink()
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    yield folder


@pytest.fixture
def course(lab: Path, tmp_path: Path) -> Course:
    put(lab, FIRST)
    course = Course(tmp_path / "course")
    course.release(PHASE)
    return course


def source_of(lab: Path, notebook: str) -> Path:
    return lab / "notebooks" / PHASE / f"{notebook}.ipynb"


def put(lab: Path, notebook: str, number: str = "", points: float = 0.0) -> None:
    """Write an exercise's notebook, perhaps under another number."""
    name, solution, usual = EXERCISES[notebook]
    path = source_of(lab, f"{number}{notebook[3:]}" if number else notebook)
    nbformat.write(second_exercise.notebook(name, solution, points or usual), path)


def hand_in(course: Course, student: str, notebook: str, module: str, released: str = "") -> None:
    content = course.released(PHASE, released or notebook)
    course.submit(student, PHASE, released or notebook, with_module(content, EXERCISES[notebook][0], module))


def marks(course: Course) -> dict[tuple[str, str], float]:
    return {(mark.student, mark.notebook): mark.score for mark in course.marks(PHASE)}


def exported(course: Course) -> dict[str, tuple[float | None, float]]:
    return {grade.learner.id: (grade.score, grade.points) for grade in course.grades(PHASE)}


def files(folder: Path) -> dict[str, bytes]:
    """All files by path, without the gradebook and the lock, whose bytes change when they are only opened."""
    opened = {"gradebook.db", ".autograde.lock"}
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in opened)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rows(course: Course) -> list[str]:
    """All that the gradebook holds."""
    with closing(sqlite3.connect(course.folder / "gradebook.db")) as database:
        return list(database.iterdump())


def test_an_exercise_is_added_after_the_first_was_graded(course: Course, lab: Path) -> None:
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    put(lab, SECOND)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", PHASE, "--force"]
    environment = {**os.environ, "LABKIT_COURSE": str(course.folder)}
    done = subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert course.notebooks(PHASE) == [FIRST, SECOND]
    assert marks(course) == {("ada", FIRST): 2.0}
    assert exported(course) == {"ada": (None, 5.0)}, "no mark yet for the new notebook"
    hand_in(course, "ada", SECOND, second_exercise.FAR_SOLUTION)
    hand_in(course, "ben", FIRST, RIGHT)
    course.autograde(PHASE)
    expected = {("ada", FIRST): 2.0, ("ada", SECOND): 2.0, ("ben", FIRST): 3.0, ("ben", SECOND): 0.0}
    assert marks(course) == expected
    assert exported(course) == {"ada": (4.0, 5.0), "ben": (3.0, 5.0)}
    course.feedback(PHASE)
    assert (course.folder / "feedback" / "ada" / PHASE / f"{SECOND}.html").is_file()


def test_an_upgrade_changes_a_notebooks_text_points_and_cells(course: Course, lab: Path) -> None:
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    put(lab, FIRST)
    notebook = nbformat.read(source_of(lab, FIRST), as_version=4)
    notebook.cells[0].source = "# A new text"
    plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    locked = {"nbgrader": {**plain, "grade_id": "rules", "locked": True}}
    by_hand = {"nbgrader": {**plain, "grade_id": "why", "grade": True, "solution": True, "points": 2}}
    notebook.cells.insert(1, new_markdown_cell("These are the rules.", id="rules", metadata=locked))
    notebook.cells.append(new_markdown_cell("Why?", id="why", metadata=by_hand))
    nbformat.write(notebook, source_of(lab, FIRST))
    course.release(PHASE)
    assert "A new text" in course.released(PHASE, FIRST).cells[0].source
    kept = {(mark.cell, mark.score) for mark in course.marks(PHASE)}
    assert kept == {("grade_pass_it_on", 2.0)}
    hand_in(course, "ada", FIRST, RIGHT)
    course.record(PHASE, "ada", [FIRST])
    assert {(mark.cell, mark.score) for mark in course.marks(PHASE)} >= {("grade_pass_it_on", 3.0)}
    assert course.total(PHASE, "ada") == (3.0, 5.0)


def test_marks_for_a_withdrawn_notebook_are_kept(course: Course, lab: Path) -> None:
    put(lab, SECOND)
    course.release(PHASE)
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    hand_in(course, "ada", SECOND, second_exercise.FAR_SOLUTION)
    course.autograde(PHASE)
    source_of(lab, SECOND).unlink()
    course.release(PHASE)
    assert course.notebooks(PHASE) == [FIRST]
    hand_in(course, "ben", FIRST, RIGHT)
    course.autograde(PHASE)
    course.record(PHASE, "ada", [FIRST])
    assert exported(course) == {"ada": (4.0, 5.0), "ben": (3.0, 5.0)}
    course.feedback(PHASE)
    page = course.folder / "feedback" / "ada" / PHASE / f"{SECOND}.html"
    assert "2 of 2 points" in page.read_text(), "the graded notebook is kept, too"
    put(lab, SECOND)
    course.release(PHASE)
    course.record(PHASE, "ada", [FIRST, SECOND])
    assert exported(course) == {"ada": (4.0, 5.0), "ben": (3.0, 5.0)}


def test_a_withdrawn_notebook_for_which_nobody_has_marks_no_longer_counts(course: Course, lab: Path) -> None:
    put(lab, SECOND)
    course.release(PHASE)
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    source_of(lab, SECOND).unlink()
    course.release(PHASE)
    assert exported(course) == {"ada": (2.0, 3.0)}


def test_renumbered_notebooks_keep_their_marks_and_verdicts(course: Course, lab: Path) -> None:
    put(lab, SECOND)
    course.release(PHASE)
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    hand_in(course, "ada", SECOND, second_exercise.FAR_SOLUTION)
    course.autograde(PHASE)
    with course._gradebook() as gradebook:
        gradebook.find_grade("grade_pass_it_on", FIRST, PHASE, "ada").manual_score = 2.5
        gradebook.db.commit()
    source_of(lab, FIRST).unlink(), source_of(lab, SECOND).unlink()
    put(lab, FIRST, number="102"), put(lab, SECOND, number="101")
    course.release(PHASE)
    first, second = "102_pass_it_on", "101_pass_it_far"
    assert marks(course) == {("ada", first): 2.5, ("ada", second): 2.0}
    verdict = VerdictStore(course.folder).latest(GradingTask("ada", PHASE, first))
    assert verdict is not None and sum(report.marks for report in verdict.verdict.reports.values()) == 2.0
    course.feedback(PHASE)
    assert (course.folder / "feedback" / "ada" / PHASE / f"{first}.html").is_file()
    course.record(PHASE, "ada", [first, second])  # from the files under their earlier names
    assert marks(course) == {("ada", first): 2.5, ("ada", second): 2.0}
    hand_in(course, "ben", FIRST, RIGHT, released=first)
    course.autograde(PHASE)
    assert marks(course)["ben", first] == 3.0


def test_a_notebook_that_cannot_be_released_leaves_everything_as_it_was(course: Course, lab: Path) -> None:
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    before = files(course.folder), rows(course)
    put(lab, FIRST, points=30)  # would change the gradebook
    put(lab, SECOND)
    notebook = nbformat.read(source_of(lab, SECOND), as_version=4)
    notebook.cells[-1].metadata.nbgrader.grade_id = "pass_it_far"  # as another cell
    nbformat.write(notebook, source_of(lab, SECOND))
    with pytest.raises(CourseFailed, match="Duplicate grade id"):
        course.release(PHASE)
    assert (files(course.folder), rows(course)) == before


def test_a_first_release_that_fails_leaves_no_assignment(lab: Path, tmp_path: Path) -> None:
    source_of(lab, FIRST).write_text("{}")
    course = Course(tmp_path / "course")
    with pytest.raises(CourseFailed):
        course.release(PHASE)
    assert course.assignments() == [] and course.grades(PHASE) == []
    with course._gradebook() as gradebook:
        assert gradebook.assignments == []


def test_a_gradebook_that_cannot_be_written_leaves_the_release(course: Course, lab: Path) -> None:
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    before = files(course.folder)
    put(lab, SECOND)
    with closing(sqlite3.connect(course.folder / "gradebook.db")) as database:
        reading = database.execute("SELECT * FROM source_cell")  # others may read, and nobody commit
        reading.fetchone()
        minutes = itertools.count(step=60)
        with patience(lambda: float(next(minutes)), lambda _: None), pytest.raises(GradebookLocked, match="locked"):
            course.release(PHASE)
        reading.close()
    assert files(course.folder) == before
    course.release(PHASE)
    assert course.notebooks(PHASE) == [FIRST, SECOND]


def test_nothing_is_released_while_the_course_is_graded(course: Course, lab: Path) -> None:
    before = files(course.folder / "release")
    put(lab, SECOND)
    with grading_alone(course.folder), pytest.raises(CourseFailed, match="being graded already"):
        course.release(PHASE)
    assert files(course.folder / "release") == before


def test_the_formgraders_button_releases_in_the_same_way(course: Course, lab: Path) -> None:
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    put(lab, SECOND)
    api = NbGraderAPI(CourseDirectory(config=course.config), config=course.config)
    assert api.generate_assignment(PHASE)["success"]
    assert course.notebooks(PHASE) == [FIRST, SECOND] and marks(course) == {("ada", FIRST): 2.0}


def test_one_notebook_is_released_anew_beside_the_others(course: Course, lab: Path) -> None:
    put(lab, SECOND)
    course.release(PHASE)
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    put(lab, FIRST)
    notebook = nbformat.read(source_of(lab, FIRST), as_version=4)
    notebook.cells[0].source = "# A new text"
    nbformat.write(notebook, source_of(lab, FIRST))
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", PHASE, "--notebook", FIRST, "--force"]
    environment = {**os.environ, "LABKIT_COURSE": str(course.folder)}
    subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, check=True, capture_output=True)
    assert course.notebooks(PHASE) == [FIRST, SECOND]
    assert course.released(PHASE, FIRST).cells[0].source == "# A new text"
    with Gradebook(CourseDirectory(config=course.config).db_url) as gradebook:
        assert sorted(notebook.name for notebook in gradebook.find_assignment(PHASE).notebooks) == [FIRST, SECOND]
    assert marks(course)["ada", FIRST] == 2.0


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system than temporary folders."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def graded_then_changed(course: Course, lab: Path) -> None:
    hand_in(course, "ada", FIRST, TWO_OF_THREE)
    course.autograde(PHASE)
    put(lab, SECOND)


@pytest.mark.parametrize("link", ["release", f"release/{PHASE}"])
def test_a_release_behind_a_link_to_another_file_system_is_made_there(
    course: Course, lab: Path, elsewhere: Path, link: str
) -> None:
    place = course.folder / link
    assert place.stat().st_dev != elsewhere.stat().st_dev
    shutil.move(place, elsewhere / place.name)
    place.symlink_to(elsewhere / place.name)
    graded_then_changed(course, lab)
    course.release(PHASE)
    assert place.is_symlink() and course.notebooks(PHASE) == [FIRST, SECOND]
    assert marks(course) == {("ada", FIRST): 2.0}
    assert {path.name for path in (elsewhere, *elsewhere.rglob("*"))}.isdisjoint({".release"}), "nothing is left over"
    assert not (course.folder / ".release").exists()


def test_a_release_whose_link_leads_nowhere_is_refused(course: Course, lab: Path, elsewhere: Path) -> None:
    shutil.rmtree(course.folder / "release")
    (course.folder / "release").symlink_to(elsewhere / "not mounted")
    before = rows(course)
    with pytest.raises(
        CourseFailed, match=r"release leads to .*not mounted, which is not there: mount that, or remove"
    ):
        course.release(PHASE)
    assert rows(course) == before and not (elsewhere / "not mounted").exists()


@pytest.mark.parametrize(
    ("mount", "reason"),
    [
        (
            "mount -t tmpfs none {0} && cp {0}.kept/* {0}",
            "is a mount point, which cannot be replaced in one step: mount",
        ),
        ("mount --bind {0} {0}", "cannot be replaced in one step (Device or resource busy): move it away"),
    ],
    ids=["another file system", "the same"],
)
def test_a_release_on_a_mount_point_is_refused_and_stays(course: Course, lab: Path, mount: str, reason: str) -> None:
    released = course.folder / "release" / PHASE
    graded_then_changed(course, lab)
    shutil.copytree(released, released.with_name(f"{PHASE}.kept"))
    before = files(course.folder), rows(course)
    command = f"{sys.executable} -m nbgrader generate_assignment {PHASE} --force"
    script = f"{mount.format(released)} && {{ {command}; code=$?; ls {released}; exit $code; }}"
    environment = {**os.environ, "LABKIT_COURSE": str(course.folder)}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and reason in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.split() == [f"{FIRST}.ipynb"]
    assert (files(course.folder), rows(course)) == before
