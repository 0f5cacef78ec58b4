"""What a machine cannot measure is left out of the marks, for all submissions alike, with a note."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
import second_exercise
from grading import grade  # beside this file
from traitlets.config import Config

from autograder.course_folder import Course
from autograder.judge import BrokenRubric, Judge
from autograder.measurable import unmeasurable
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from autograder.verdicts.store import VerdictStore
from labkit import catalogue
from labkit.checks import CannotJudge

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
MEASURED = """

@check(points=2, title="no more bytes than the tensors", needs={"network"})
def wire(submission, ranks, draw):
    inputs = draw.tensors(2, 100_000)
    run = ranks.processes(2).call(submission.pass_it_on, inputs)
    expect(run.bytes_on_the_wire, "bytes").at_most(1.1 * 2 * 400_000)
"""
RUBRIC = second_exercise.RUBRIC + MEASURED


@pytest.fixture
def exercise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Exercise:
    second_exercise.add_to(tmp_path)
    notebook = second_exercise.notebook(NAME, second_exercise.SOLUTION, points=5)
    nbformat.write(notebook, tmp_path / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb")
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    exercise = catalogue.find(NAME)
    rubric_of(exercise).write_text(RUBRIC)
    return exercise


def rubric_of(exercise: catalogue.Exercise) -> Path:
    return catalogue.root() / "autograder" / "course" / exercise.name / "rubric.py"


def configured() -> Config:
    """Ranks run in this machine's own network, and only samples show how much memory they hold."""
    return Config({"Sandbox": {"runner": "test_sandbox_runner.Limited", "cgroups": False}})


def test_what_cannot_be_measured_is_left_out_until_a_machine_measures_it(
    exercise: catalogue.Exercise, tmp_path: Path
) -> None:
    course = Course(tmp_path / "course", configured())
    course.release(PHASE)
    course.submit("ada", PHASE, NOTEBOOK, with_module(course.released(PHASE, NOTEBOOK), NAME, second_exercise.SOLUTION))
    (line,) = grade(course, PHASE, workers=1)
    assert (line.earned, line.points) == (5, 5)
    assert "pass_it_on: 2 of 5 points are left out: bytes on the network cannot be counted" in line.left_out
    assert [(mark.score, mark.max_score) for mark in course.marks(PHASE)] == [(5, 5)]
    course.feedback(PHASE)
    page = (course.folder / "feedback" / "ada" / PHASE / f"{NOTEBOOK}.html").read_text()
    assert "5</b> of 5 points" in page and "changed this" not in page
    assert "skipped" in page and "3 of the other 3 count as 5 of 5" in page
    if not Sandbox().available:
        pytest.skip("needs namespaces, for a sandbox that measures")
    verdicts = VerdictStore(course.folder)
    before = verdicts.latest(line.work)
    Course(course.folder).record(PHASE, "ada", [NOTEBOOK])
    after = verdicts.latest(line.work)
    assert before is not None and after is not None and before.key != after.key
    (report,) = after.verdict.reports.values()
    assert report.passed and not report.left_out


def test_a_check_says_what_it_needs(exercise: catalogue.Exercise) -> None:
    """Otherwise the submission, which runs before the figure is read, would decide whether it is left out."""
    rubric_of(exercise).write_text(RUBRIC.replace(', needs={"network"}', ""))
    sandbox = Sandbox(config=configured())
    with pytest.raises(BrokenRubric, match=r"needs=\{\"network\"\}"), Judge(sandbox) as judge:
        judge.judge(exercise, second_exercise.SOLUTION, checks=["wire"])
    rubric_of(exercise).write_text(RUBRIC.replace('{"network"}', '{"weather"}'))
    with pytest.raises(BrokenRubric, match="needs must be among network, memory, got weather"):
        Judge(sandbox).judge(exercise, second_exercise.SOLUTION)


def test_a_runner_without_a_network_of_its_own_measures_no_bytes(exercise: catalogue.Exercise) -> None:
    sandbox = Sandbox(config=configured())
    assert set(unmeasurable(sandbox)) == {"network", "memory"}
    with pytest.raises(CannotJudge, match=r"nothing of .* network of their own"), Judge(sandbox) as judge:
        judge.judge(exercise, second_exercise.SOLUTION, checks=["wire"])
