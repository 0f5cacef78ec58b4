"""The instructor's whole workflow: release, submit, autograde, feedback, gradebook."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from autograder.cells import exercise_cell, graded_exercise, module_text
from autograder.course_folder import CONFIG_FILE, Course
from autograder.grading import EMPTY, UNTOUCHED
from autograder.judge import hidden_rubric
from autograder.mutants import Mutants, Variants
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from labkit import catalogue

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox"),
]

PHASE, NOTEBOOK = "phase3_multi_node", "10_ring_allreduce"
EXERCISE = catalogue.find("ring_allreduce")
RUBRIC = hidden_rubric(EXERCISE)
MUTANTS, VARIANTS = Mutants(EXERCISE), Variants(EXERCISE)
SOLUTION = EXERCISE.source("solution")[0]
NOISE = "\n\nimport sys, warnings\nwarnings.warn('deprecated')\nprint('debug', file=sys.stderr)\n"


def command(course: Path, *words: str) -> str:
    """Run `nbgrader ...` or `labkit ...` as an instructor does; return its log."""
    environment = {**os.environ, "LABKIT_COURSE": str(course)}
    arguments = [sys.executable, "-m", *words]
    done = subprocess.run(arguments, env=environment, cwd=CONFIG_FILE.parent, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stderr


def mutants() -> dict[str, float]:
    """One each of the lowest, middle and highest marks; tests/course/test_rubrics.py judges all of them."""
    of_marks = {mutant.marks: name for name, mutant in reversed(list(MUTANTS.items()))}
    marks = sorted(of_marks)
    return {of_marks[one]: one for one in (marks[0], marks[len(marks) // 2], marks[-1])}


def submissions(released: NotebookNode) -> Iterator[tuple[str, NotebookNode, float]]:
    """Yield each learner, their submission, and the marks that it must get."""
    for name, module, marks in (
        ("right", SOLUTION, RUBRIC.points),
        ("right_but_noisy", SOLUTION + NOISE, RUBRIC.points),
        ("nothing", "", 0.0),
        ("only_spaces", "\n   \n", 0.0),
        ("template_with_a_comment", module_text(exercise_cell(released, EXERCISE.name).source) + "\n# hello", 0.0),
        *((name, VARIANTS.text(name), RUBRIC.points) for name in list(VARIANTS)[:1]),
        *((name, MUTANTS.text(name), marks) for name, marks in mutants().items()),
    ):
        yield name, with_module(released, EXERCISE.name, module), marks
    yield "untouched", released, 0.0


@dataclass(frozen=True)
class Graded:
    """A course after the whole round trip."""

    course: Course
    released: NotebookNode
    expected: dict[str, float]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    folder = tmp_path_factory.mktemp("course")
    command(folder, "nbgrader", "generate_assignment", PHASE)
    course = Course(folder)
    released = course.released(PHASE, NOTEBOOK)
    expected = {}
    for student, notebook, marks in submissions(released):
        course.submit(student, PHASE, NOTEBOOK, notebook)
        expected[student] = marks
    command(folder, "labkit", "autograde", PHASE, "--workers", "2")
    course.feedback(PHASE)
    course.export(folder / "grades.csv")
    return Graded(course, released, expected)


def test_a_release_holds_no_solution_no_output_and_no_hidden_check(graded: Graded) -> None:
    text = (graded.course.folder / "release" / PHASE / f"{NOTEBOOK}.ipynb").read_text()
    assert "BEGIN SOLUTION" not in text and "raise NotImplementedError()" in text
    assert not any(check.title in text for check in RUBRIC.checks)
    assert all(not cell.outputs for cell in graded.released.cells if cell.cell_type == "code")
    lines_of_rubric = (line.strip() for line in RUBRIC.path.read_text().splitlines())
    hidden = {line for line in lines_of_rubric if "expect(" in line or "check(" in line}
    lines = {line.strip() for cell in graded.released.cells for line in cell.source.splitlines()}
    assert not lines & hidden


def test_a_release_has_a_locked_graded_cell_worth_the_rubric(graded: Graded) -> None:
    cells = [cell for cell in graded.released.cells if graded_exercise(cell) == EXERCISE.short_name]
    assert [cell.source.splitlines()[-1] for cell in cells] == ['grade("ring_allreduce")']
    told = cells[0].metadata
    assert (told.nbgrader.points, told.nbgrader.locked, told.editable) == (RUBRIC.points, True, False)
    exercise = exercise_cell(graded.released, EXERCISE.name)
    assert exercise is not None and exercise.metadata.get("editable", True) and not exercise.metadata.deletable


def test_every_graded_cell_of_the_lab_is_worth_its_rubric() -> None:
    notebooks = sorted((catalogue.root() / "notebooks").glob("phase*_*/*.ipynb"))
    assert notebooks
    for path in notebooks:
        for cell in nbformat.read(path, as_version=4).cells:
            name = graded_exercise(cell)
            if name is not None:
                assert cell.metadata.nbgrader.points == hidden_rubric(catalogue.find(name)).points, path


def test_a_released_exercise_cell_is_the_template(graded: Graded) -> None:
    cell = exercise_cell(graded.released, EXERCISE.name)
    assert cell is not None
    assert module_text(cell.source).strip() == EXERCISE.paths["template"].read_text().strip()


def test_every_submission_gets_its_marks(graded: Graded) -> None:
    marks = [mark for mark in graded.course.marks(PHASE) if mark.notebook == NOTEBOOK]
    assert {mark.student: mark.score for mark in marks} == graded.expected
    assert {mark.max_score for mark in marks} == {RUBRIC.points}


def test_the_exported_marks_are_those_of_the_gradebook(graded: Graded) -> None:
    with (graded.course.folder / "grades.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["student_id"]: float(row["score"]) for row in rows} == graded.expected


def test_feedback_names_each_check_and_says_why_there_are_no_marks(graded: Graded) -> None:
    def page(student: str) -> str:
        return (graded.course.folder / "feedback" / student / PHASE / f"{NOTEBOOK}.html").read_text()

    for student in ("right", "nothing", "calls_all_reduce"):
        assert [check.title for check in RUBRIC.checks if check.title not in page(student)] == []
    assert EMPTY in page("nothing") and EMPTY in page("only_spaces")
    assert UNTOUCHED in page("untouched")


def test_a_second_autograde_grades_nobody_again(graded: Graded) -> None:
    log = command(graded.course.folder, "nbgrader", "autograde", PHASE)
    assert log.count("Skipping existing assignment") == len(graded.expected)
