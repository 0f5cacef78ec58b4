"""A class of honest learners and more than sixty hostile ones, through the real pipeline, next to the honest alone."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pass_around
import pytest
from classmates import CLASS, HONEST, HOSTILE, Classmate
from outcomes import GRADER_BYTES, LIMITS, assert_harmless, assert_in_use, contents, feedback, unlike

from autograder.course_folder import Course
from autograder.integrity.page import page
from autograder.integrity.report import make_report
from autograder.sandbox import Sandbox
from autograder.submissions import with_module

pytestmark = [
    # in CI it is required: without it these tests fail
    pytest.mark.skipif(not Sandbox().available and os.environ.get("CI") != "true", reason="needs namespaces"),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

PHASE, NOTEBOOK = pass_around.PHASE, pass_around.NOTEBOOK

FIRST = ("0_first", "0_second")
"""Submit the solution before all others: a worker's first submission also pays for the worker's start."""
GRADE = """
import json, resource, sys
from pathlib import Path
from autograder.batch.launch import WorkerForkServer, begin
from labkit.linux.prctl import adopt_orphans

folder, phase, options, limit = json.loads(sys.argv[1])
adopt_orphans()  # so that whatever is left behind becomes a child of this process
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
# as `labkit autograde` does it
begin()
import psutil
from traitlets.config import Config
from autograder.batch.run import grade
from autograder.course_folder import Course
from autograder.sandbox.forkserver import close_all
forkserver = WorkerForkServer(forked=True)
lines = grade(Course(Path(folder), Config(options)), phase, workers=2, forkserver=forkserver)
close_all()
left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=300)[1]
print(json.dumps({
    "states": {line.work.student: [line.state, line.reason] for line in lines},
    "seconds": {line.work.student: line.seconds for line in lines},
    "left": [" ".join(process.cmdline()) for process in left],
}))
"""


@dataclass(frozen=True)
class Graded:
    """A class whose submissions have been graded."""

    course: Course
    states: dict[str, tuple[str, str]]
    """By student: `graded`, or `error` with its reason."""
    seconds: dict[str, float]
    """Judging time in seconds, by student."""
    wall_seconds: float
    left: list[str]
    """Processes still running at the end, by command."""
    scratch: Path
    """The grader's folder for temporary files."""
    shared: set[str]
    """New files in /dev/shm."""

    @cached_property
    def marks(self) -> dict[str, float]:
        return {mark.student: mark.score for mark in self.course.marks(PHASE) if mark.student not in FIRST}


def grade_class(folder: Path, learners: Sequence[Classmate]) -> Graded:
    """Submit for all, and grade them with two workers."""
    course = Course(folder / "course")
    course.release(PHASE)
    for name in FIRST:
        released = course.released(PHASE, NOTEBOOK)
        course.submit(name, PHASE, NOTEBOOK, with_module(released, pass_around.NAME, pass_around.SOLUTION))
    for learner in learners:
        place = course.folder / "submitted" / learner.name / PHASE
        place.mkdir(parents=True)
        learner.hand_in(place, course.released(PHASE, NOTEBOOK))
    scratch = folder / "scratch"
    scratch.mkdir()
    before = set(os.listdir("/dev/shm"))
    began = datetime.now()
    asked = json.dumps([str(course.folder), PHASE, LIMITS, GRADER_BYTES])
    environment = {**os.environ, "TMPDIR": str(scratch), "LABKIT_SECRET": "not for learners"}
    done = subprocess.run([sys.executable, "-c", GRADE, asked], env=environment, capture_output=True, text=True)
    wall_seconds = (datetime.now() - began).total_seconds()
    assert done.returncode == 0, done.stderr[-5000:]
    told = json.loads(done.stdout.splitlines()[-1])
    course.feedback(PHASE)
    states = {student: (state, reason) for student, (state, reason) in told["states"].items()}
    shared = set(os.listdir("/dev/shm")) - before
    return Graded(course, states, told["seconds"], wall_seconds, told["left"], scratch, shared)


@pytest.fixture(scope="module")
def alone(tree: Path) -> Graded:
    return grade_class(tree.parent / f"{tree.name}-alone", HONEST)


@pytest.fixture(scope="module")
def together(tree: Path, alone: Graded) -> Graded:
    before = contents([tree])
    found = grade_class(tree.parent / f"{tree.name}-together", CLASS)
    assert contents([tree]) == before
    show_seconds(alone, found)
    return found


def show_seconds(alone: Graded, together: Graded) -> None:
    """Print how long grading took: for information only, since it depends on the machine's load."""
    honest = [sum(graded.seconds[one.name] for one in HONEST) for graded in (alone, together)]
    longest = sorted(together.seconds, key=lambda name: -together.seconds[name])[:10]
    print(f"honest: {honest[0]:.1f} s alone, {honest[1]:.1f} s together; ", end="")
    print(f"the class of {len(CLASS)}: {together.wall_seconds:.0f} s; longest:")
    print(", ".join(f"{name} {together.seconds[name]:.1f} s" for name in longest))


def test_the_class_is_large_enough() -> None:
    assert len(HOSTILE) >= 60 and len(HONEST) >= 14
    assert len({one.name for one in CLASS}) == len(CLASS)


@pytest.mark.parametrize("one", CLASS, ids=lambda one: one.name)
def test_each_gets_what_they_deserve_with_its_reason(one: Classmate, together: Graded) -> None:
    assert together.states[one.name] == ("graded", "")
    if one.open and together.marks[one.name] != one.marks:
        pytest.xfail(one.open)
    assert unlike(one, together.marks[one.name], feedback(together.course, one.name)) == ""


def test_nobody_else_is_in_the_gradebook(together: Graded) -> None:
    assert {mark.student for mark in together.course.marks(PHASE)} == {one.name for one in CLASS} | set(FIRST)
    for mark in together.course.marks(PHASE):
        assert (mark.notebook, mark.cell, mark.max_score) == (NOTEBOOK, "grade_pass_around", pass_around.POINTS)
    with sqlite3.connect(together.course.folder / "gradebook.db") as gradebook:
        assert gradebook.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def comparable(one: Classmate, text: str) -> str:
    """Return the words of feedback without what is drawn anew each time: numbers, and how wide they are in columns.

    Nor does the order count in which the threads of a rank ask.
    """
    words = re.sub(r"-?\d[\d.e-]*", "#", text).split()
    if "import Thread" not in one.path.read_text():
        return " ".join(words)
    return re.sub(r"((send|recv) )+", lambda run: " ".join([*sorted(run.group().split()), ""]), " ".join(words))


def test_honest_marks_and_feedback_are_those_of_a_class_of_their_own(alone: Graded, together: Graded) -> None:
    for one in HONEST:
        assert alone.marks[one.name] == together.marks[one.name] == one.marks
        assert comparable(one, feedback(alone.course, one.name)) == comparable(one, feedback(together.course, one.name))


def test_nothing_is_left_behind(alone: Graded, together: Graded) -> None:
    for graded in (alone, together):
        assert graded.left == []
        assert list(graded.scratch.iterdir()) == []
        assert_in_use(graded.shared)


def test_the_integrity_report_points_at_tricks_and_at_nobody_honest(together: Graded) -> None:
    report = make_report(together.course.folder, PHASE)
    found = {finding.student for finding in report.findings}
    assert not found & {*(one.name for one in HONEST), *FIRST}
    tricks = [one for one in HOSTILE if one.path.parent.name in ("patches", "protocol", "shadows", "spies")]
    assert len(tricks) > 20 and {one.name for one in tricks} <= found
    assert {"delegates_to_the_library", "takes_all_inputs_from_the_stack", "false_points", "two_answers"} <= found
    assert ("one_after_the_other", "stops_the_clock") in {(p.left.student, p.right.student) for p in report.pairs}
    assert_harmless(page(report))


@pytest.mark.parametrize("one", CLASS, ids=lambda one: one.name)
def test_a_page_for_everybody_with_nothing_active_of_theirs(one: Classmate, together: Graded) -> None:
    path = together.course.folder / "feedback" / one.name / PHASE / f"{NOTEBOOK}.html"
    assert_harmless(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 5_000_000
