"""Batch grading: the same marks as nbgrader alone, nothing judged twice, and no loss when processes die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import nbformat
import psutil
import pytest
import second_exercise
from clocks import ManualClock
from event_clock import HANG_SECONDS, IS_HELD, LETS_GO
from grading import grade  # beside this file
from traitlets.config import Config
from waiting import BROKEN_SECONDS, wait_until

from autograder.batch import run
from autograder.batch.launch import WorkerForkServer, begin
from autograder.batch.lock import CourseLocked, grading_alone
from autograder.batch.pool import ATTEMPTS, STUCK, Pool
from autograder.batch.run import NotebookSummary
from autograder.batch.terminal import harmless
from autograder.course_folder import Course
from autograder.judge import BrokenRubric
from autograder.sandbox import Sandbox
from autograder.submissions import with_module
from autograder.verdicts.store import GradingTask, VerdictStore
from labkit.checks import NoRubric

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
RIGHT = second_exercise.SOLUTION
HELD = RIGHT + f"\n{IS_HELD}\n"
BY_EVENTS = {"Sandbox": {"runner": "event_clock.ByEvents"}}
MARKS = {"right": 3.0, "twice": 2.0, "untouched": 0.0, "nothing": 0.0}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tree"
    second_exercise.add_to(folder)
    source = folder / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(NAME, RIGHT, points=3), source)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


@pytest.fixture
def course(tree: Path) -> Course:
    course = Course(tree / "course")
    course.release(PHASE)
    return course


@pytest.fixture
def lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file without which `HELD` is held in judging."""
    monkeypatch.setenv(LETS_GO, str(tmp_path / "lets-go"))
    return tmp_path / "lets-go"


@pytest.fixture
def course_with_held(course: Course, lets_go: Path) -> Course:
    """The course, where submissions can be held."""
    return Course(course.folder, Config(BY_EVENTS))


def hand_in(course: Course, student: str, module: str) -> None:
    course.submit(student, PHASE, NOTEBOOK, with_module(course.released(PHASE, NOTEBOOK), NAME, module))


def states(lines: Sequence[NotebookSummary]) -> dict[str, tuple[str, bool, float | None]]:
    return {line.work.student: (line.state, line.judged, line.earned) for line in lines}


def marks(course: Course) -> dict[str, float]:
    return {mark.student: mark.score for mark in course.marks(PHASE)}


def test_marks_are_nbgraders_and_nothing_is_judged_twice(course: Course, tree: Path) -> None:
    hand_in(course, "right", RIGHT)
    hand_in(course, "twice", second_exercise.SENDS_TWICE)
    course.submit("untouched", PHASE, NOTEBOOK, course.released(PHASE, NOTEBOOK))
    (course.folder / "submitted" / "nothing" / PHASE).mkdir(parents=True)

    first = grade(course, PHASE, workers=2)
    assert states(first) == {name: ("graded", True, points) for name, points in MARKS.items()}
    assert marks(course) == MARKS
    assert states(grade(course, PHASE, workers=2)) == {n: ("unchanged", False, p) for n, p in MARKS.items()}

    hand_in(course, "twice", RIGHT)
    (course.folder / "autograded" / "right" / PHASE / f"{NOTEBOOK}.ipynb").unlink()
    now = states(grade(course, PHASE, workers=1))
    assert now["twice"] == ("graded", True, 3.0) and now["right"] == ("graded", False, 3.0)
    assert now["untouched"] == ("unchanged", False, 0.0)
    assert marks(course) == {**MARKS, "twice": 3.0}

    rubric = tree / "autograder" / "course" / NAME / "rubric.py"
    rubric.write_text(rubric.read_text().replace("equals([1, 1, 1])", "equals([2, 2, 2])"))
    hand_in(course, "twice", second_exercise.SENDS_TWICE)
    again = states(grade(course, PHASE, ["right", "twice"]))
    assert again == {"right": ("graded", True, 2.0), "twice": ("graded", True, 3.0)}
    assert marks(course) == {**MARKS, "right": 2.0, "twice": 3.0}

    # nbgrader alone: uses stored verdicts, and judges where there are none
    shutil.rmtree(course.folder / "autograded")
    shutil.rmtree(course.folder / "verdicts" / "twice")
    course.autograde(PHASE, "[rt]*")
    assert marks(course) == {**MARKS, "right": 2.0, "twice": 3.0}
    assert VerdictStore(course.folder).latest(GradingTask("twice", PHASE, NOTEBOOK)) is not None

    # without its gradebook, a course that is released again has the marks of the stored verdicts
    (course.folder / "gradebook.db").unlink()
    course.release(PHASE)
    judged = {line.work.student for line in grade(course, PHASE) if line.judged}
    assert judged == {"untouched", "nothing"}, "those that were not graded since the rubric changed"
    assert marks(course) == {**MARKS, "right": 2.0, "twice": 3.0}


def test_what_is_broken_for_all_is_told_once_and_before_anybody_is_judged(course: Course, tree: Path) -> None:
    hand_in(course, "learner", RIGHT)
    rubric = tree / "autograder" / "course" / NAME / "rubric.py"
    text = rubric.read_text()
    started: list[object] = []
    broken = {
        text.replace("points=1", "points=2"): "the notebook says 3 points, its rubric 4",
        "def broken(:\n": f"the rubric {rubric} cannot be used: SyntaxError: .*line 1",
        "undefined_thing\n": f"the rubric {rubric} cannot be used: NameError",
    }
    for replaced, why in broken.items():
        rubric.write_text(replaced)
        with pytest.raises(BrokenRubric, match=why):
            grade(course, PHASE, on_start=started.append)
    rubric.unlink()
    with pytest.raises(NoRubric, match=f"{NAME} has no checks"):
        grade(course, PHASE, on_start=started.append)
    assert not started and marks(course) == {} and not (course.folder / "verdicts").exists()


def test_what_fails_in_judging_is_an_error_and_no_mark(course: Course) -> None:
    hand_in(course, "learner", RIGHT)
    release = course.folder / "release" / PHASE / f"{NOTEBOOK}.ipynb"
    text = release.read_text()
    without = nbformat.reads(text, as_version=4)
    without.cells = [cell for cell in without.cells if "%%exercise" not in cell.source]
    nbformat.write(without, release)
    [line] = grade(course, PHASE)
    assert line.state == "error" and "the released notebook has no cell" in line.reason
    assert marks(course) == {}
    failure = VerdictStore(course.folder).failure(line.work)
    assert failure is not None and failure.reason == line.reason and failure.attempts == 1
    release.write_text(text)
    assert states(grade(course, PHASE, only_errors=True)) == {"learner": ("graded", True, 3.0)}
    assert VerdictStore(course.folder).failure(line.work) is None
    assert grade(course, PHASE, only_errors=True) == []


def test_where_the_machine_is_too_slow_it_is_an_error_that_the_next_run_tries_again(course: Course, tree: Path) -> None:
    hand_in(course, "hangs", second_exercise.HANGS)
    hand_in(course, "right", RIGHT)
    course = Course(course.folder, Config({**BY_EVENTS, "JudgeCells": {"timeout": HANG_SECONDS}}))
    solution = tree / "solutions" / f"{NAME}.py"
    solution.write_text(second_exercise.SLOW_SOLUTION)
    lines = {line.work.student: line for line in grade(course, PHASE)}
    assert (lines["hangs"].state, lines["right"].state) == ("error", "graded")
    assert "too slow" in lines["hangs"].reason
    assert marks(course) == {"right": 3.0}
    solution.write_text(RIGHT)
    assert states(grade(course, PHASE, only_errors=True)) == {"hangs": ("graded", True, 0.0)}


def test_a_worker_that_dies_is_replaced_and_its_work_tried_once_more(course_with_held: Course, lets_go: Path) -> None:
    course = course_with_held
    hand_in(course, "slow", HELD)
    hand_in(course, "right", RIGHT)
    killed: list[int] = []

    lines: list[NotebookSummary] = []
    # a forkserver that is a program of its own: the kernel would end a fork of this process with the thread
    thread = threading.Thread(target=lambda: lines.extend(run.grade(course, PHASE, ["slow"], workers=1)))
    thread.start()
    while len(killed) < 2:
        for worker in wait_until(lambda: _workers(killed), pause_seconds=0.01):
            worker.kill()
            killed.append(worker.pid)
    thread.join()
    [line] = lines
    assert line.state == "error" and "killed" in line.reason and marks(course) == {}
    lets_go.touch()
    assert states(grade(course, PHASE)) == {"slow": ("graded", True, 3.0), "right": ("graded", True, 3.0)}


def test_a_worker_without_an_outcome_for_half_an_hour_is_ended(course_with_held: Course) -> None:
    hand_in(course_with_held, "held", HELD)
    passed, seen = ManualClock(), set[int]()

    def clock() -> float:
        """Let half an hour pass when the work is under way: each time that it is tried."""
        held = {one.pid for one in psutil.Process().children(recursive=True) if is_held(one)}
        if held - seen:
            passed.advance(STUCK + 1)
            seen.update(held)
        return passed()

    begin()
    forkserver = WorkerForkServer(forked=True)
    with (
        closing(forkserver),
        Pool(course_with_held.folder, course_with_held.options, 1, forkserver, clock=clock) as pool,
    ):
        [outcome] = pool.run([GradingTask("held", PHASE, NOTEBOOK)])
    assert "killed" in outcome.error and outcome.attempts == ATTEMPTS


def is_held(process: psutil.Process) -> bool:
    try:
        return process.name() == "held" and process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _workers(known: Sequence[int]) -> list[psutil.Process]:
    """Return the workers of this process, except known ones."""
    forkservers = [child for child in psutil.Process().children() if "autograder.batch.forkserver" in words(child)]
    return [worker for forkserver in forkservers for worker in forkserver.children() if worker.pid not in known]


def words(process: psutil.Process) -> list[str]:
    """Return its command line; empty for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie, too
        return []


def autograding() -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "labkit",
        "autograde",
        PHASE,
        "--workers",
        "1",
        "--Sandbox.runner=event_clock.ByEvents",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those that run, or could."""
    return [one for one in processes if words(one)]


@pytest.fixture
def started(course_with_held: Course) -> Iterator[subprocess.Popen[str]]:
    """`labkit autograde` in mid-run: one verdict is stored, the next submission is being judged."""
    course = course_with_held
    hand_in(course, "a_right", RIGHT)
    hand_in(course, "b_held", HELD)
    hand_in(course, "c_right", RIGHT)
    with autograding() as run:
        wait_until(
            lambda: (
                VerdictStore(course.folder).latest(GradingTask("a_right", PHASE, NOTEBOOK)) or run.poll() is not None
            )
        )
        yield run
        run.kill()


def test_a_run_that_is_killed_goes_on_where_it_stood(
    course_with_held: Course, started: subprocess.Popen[str], lets_go: Path
) -> None:
    course = course_with_held
    with pytest.raises(CourseLocked, match=f"process {started.pid} on "):
        grade(course, PHASE)
    below = psutil.Process(started.pid).children(recursive=True)
    started.kill()
    assert len(below) >= 2 and psutil.wait_procs(below, timeout=BROKEN_SECONDS)[1] == []
    lets_go.touch()
    lines = {line.work.student: line for line in grade(course, PHASE, workers=2)}
    assert marks(course) == {"a_right": 3.0, "b_held": 3.0, "c_right": 3.0}
    assert not lines["a_right"].judged and lines["b_held"].judged


def test_ctrl_c_leaves_nothing_running_and_says_how_to_go_on(
    course_with_held: Course, started: subprocess.Popen[str]
) -> None:
    course = course_with_held
    below = psutil.Process(started.pid).children(recursive=True)
    started.send_signal(signal.SIGINT)
    said = started.communicate()[0]
    assert len(below) >= 2 and alive(below) == []
    assert started.returncode == 130 and said.endswith("graded; run the same command again to go on.\n")
    lines = {line.work.student: line for line in grade(course, PHASE, ["a_right", "c_right"], workers=1)}
    assert marks(course) == {"a_right": 3.0, "c_right": 3.0}
    assert not lines["a_right"].judged


def test_ctrl_c_does_not_wait_for_imports(course: Course) -> None:
    with autograding() as run:
        command = psutil.Process(run.pid)
        wait_until(
            lambda: any(
                "autograder.sandbox.inside.forkserver" in words(child) for child in command.children(recursive=True)
            )
        )
        below = command.children(recursive=True)
        for one in below:
            one.suspend()  # as if it took forever
        run.send_signal(signal.SIGINT)
        run.communicate()
    wait_until(lambda: alive(below) == [])


def test_what_builds_on_an_earlier_exercise_gets_the_learners_own(tree: Path) -> None:
    second_exercise.add_third_to(tree)
    far, name = second_exercise.FAR, "102_pass_it_far"
    # correct only with this learner's module in place of the solution
    uses = second_exercise.FAR_SOLUTION.replace("return tensor", "return tensor if hasattr(pass_it_on, 'MINE') else 0")
    nbformat.write(second_exercise.notebook(far, uses, points=2), tree / "notebooks" / PHASE / f"{name}.ipynb")
    course = Course(tree / "course")
    course.release(PHASE)

    def hand_in_both(student: str, own: str) -> None:
        hand_in(course, student, own)
        course.submit(student, PHASE, name, with_module(course.released(PHASE, name), far, uses))

    hand_in_both("mine", RIGHT + "\nMINE = True\n")
    hand_in_both("plain", RIGHT + "\n# mine\n")
    assert marks_of(grade(course, PHASE), name) == {"mine": (2.0, True), "plain": (0.0, True)}
    hand_in_both("plain", RIGHT + "\nMINE = 1\n")
    assert marks_of(grade(course, PHASE), name) == {"mine": (2.0, False), "plain": (2.0, True)}


def marks_of(lines: Sequence[NotebookSummary], notebook: str) -> dict[str, tuple[float | None, bool]]:
    return {line.work.student: (line.earned, line.judged) for line in lines if line.work.notebook == notebook}


def test_only_one_grades_a_course(course: Course) -> None:
    hand_in(course, "learner", RIGHT)
    with (
        grading_alone(course.folder),
        pytest.raises(CourseLocked, match=f"being graded already, by process {os.getpid()}"),
    ):
        grade(course, PHASE)


def test_names_cannot_steer_a_terminal() -> None:
    assert harmless("a\x1b[31mb\nc‮d") == "a\\x1b[31mb\\x0ac\\x202ed"
    assert harmless("Żółć 学生") == "Żółć 学生"
    assert len(harmless("x" * 1000)) == 200
