"""The course from release to gradebook: who hands in all solutions gets full marks, who hands in the release none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.course_folder import CONFIG_FILE, Course
from autograder.grading import UNTOUCHED
from autograder.judge import hidden_rubric
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from labkit import catalogue

PHASES = sorted({exercise.phase for exercise in catalogue.all_exercises()})


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
@pytest.mark.parametrize("phase", PHASES)
def test_all_solutions_get_full_marks_and_the_release_as_it_is_none(phase: str, tmp_path: Path) -> None:
    """Earlier phases are not handed in: the solutions stand in for what an exercise builds on."""
    course, exercises = Course(tmp_path), catalogue.several(phase)
    course.release(phase)
    expected = {}
    for exercise in exercises:
        notebook = exercise.notebook.stem
        released = course.released(phase, notebook)
        course.submit(
            "all_solutions", phase, notebook, with_module(released, exercise.name, exercise.source("solution")[0])
        )
        course.submit("as_released", phase, notebook, released)
        points = hidden_rubric(exercise).points
        expected |= {("all_solutions", notebook): (points, points), ("as_released", notebook): (0.0, points)}
    command = [sys.executable, "-m", "nbgrader", "autograde", phase]
    environment = {**os.environ, "LABKIT_COURSE": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd=CONFIG_FILE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    course.feedback(phase)
    pages = {
        (student, notebook): tmp_path / "feedback" / student / phase / f"{notebook}.html"
        for student, notebook in expected
    }
    marks = {(mark.student, mark.notebook): (mark.score, mark.max_score) for mark in course.marks(phase)}
    assert marks == expected, {
        place: pages[place].read_text()[-4000:] for place in expected if marks.get(place) != expected[place]
    }
    for (student, _), page in pages.items():
        assert (UNTOUCHED in page.read_text()) == (student == "as_released"), page
