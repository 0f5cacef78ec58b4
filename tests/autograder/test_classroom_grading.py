"""Submissions that are graded as they come in: in turn, so many a day, and none lost when the service is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
import second_exercise
from rich.console import Console
from small_classroom import ROOT, Classroom, small_classroom

from autograder.classroom import configured, demo
from autograder.classroom.challenges.entries import assignment_of
from autograder.classroom.challenges.leaderboard import Leaderboard
from autograder.classroom.folders import Folders
from autograder.classroom.grading_queue import Done, GradingQueue, Submission, in_turn
from autograder.course import Course

PHASE = second_exercise.PHASE


def arrive(
    inbound: Path, learner: str, minute: int, assignment: str = PHASE, name: str = "", whole: bool = True
) -> Path:
    folder = inbound / learner / f"{name or learner}+{assignment}+2026-12-01 10:{minute:02}:00.000000 UTC+x"
    folder.mkdir(parents=True)
    if whole:
        (folder / "submission_secret.txt").write_text("")
    return folder


def test_the_newest_whole_submission_of_each_learner_waits(tmp_path: Path) -> None:
    inbound = tmp_path / "inbound"
    arrive(inbound, "ada", 1)
    newest = arrive(inbound, "ada", 3)
    arrive(inbound, "ada", 2)
    arrive(inbound, "ada", 4, whole=False)
    arrive(inbound, "ada", 5, name="grace")
    arrive(inbound, "ada", 6, assignment="phase9_other")
    (inbound / "ada" / f"ada+{PHASE}+never+x").mkdir()
    (inbound / "link").symlink_to(inbound / "ada")
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=5)
    assert [one.path for one in queue.waiting("2026-12-01")] == [newest]


def test_tries_of_a_day_are_counted_by_learner_and_assignment(tmp_path: Path) -> None:
    inbound = tmp_path / "inbound"
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=2)
    for minute, judged in enumerate((True, False, True)):
        arrive(inbound, "ada", minute)
        (one,) = queue.waiting("2026-12-01")
        queue.finish(one, Done("ada", PHASE, one.path.name, f"2026-12-01T10:{minute:02}:30+00:00", judged))
    arrive(inbound, "ada", 9)
    grace = arrive(inbound, "grace", 9)
    assert [one.path for one in queue.waiting("2026-12-01")] == [grace]
    assert {one.learner for one in queue.waiting("2026-12-02")} == {"ada", "grace"}
    again = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=2)
    assert [one.path for one in again.waiting("2026-12-01")] == [grace], "records outlive the service"


def test_learners_take_turns() -> None:
    def handed_in(learner: str, seconds: float) -> Submission:
        return Submission(learner, PHASE, datetime(2026, 12, 1), Path(f"{learner}{seconds}"), seconds)

    many = [handed_in("ada", second) for second in (1, 2, 3)]
    grace, alan = handed_in("grace", 4), handed_in("alan", 5)
    assert in_turn([*many, alan, grace], served=[]) == [many[0], grace, alan, *many[1:]]
    assert in_turn([*many, alan, grace], served=["grace", "ada"]) == [alan, grace, many[0], *many[1:]]


def graded(classroom: Classroom, folders: Folders, until: str) -> None:
    """Run the service until its log contains a text, or all have their marks if it is empty; then kill it."""
    environment = {
        **classroom.environment,
        configured.SITE: str(classroom.site),
        configured.RUNNING: str(folders.running),
    }
    log = classroom.root / "grading.log"
    with log.open("w") as output:
        command = [sys.executable, "-P", "-m", "autograder.classroom.grading_service"]
        service = subprocess.Popen(command, env=environment, cwd=classroom.root, stdout=output, stderr=output)
    try:
        while until not in log.read_text() if until else len(list(folders.graded.glob("*/*"))) < 3:
            assert service.poll() is None, log.read_text()
            time.sleep(0.1)
    finally:
        service.send_signal(signal.SIGKILL)
        service.wait()


@pytest.mark.slow
def test_a_killed_service_loses_nothing_and_marks_come_back_with_feedback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    classroom = small_classroom(tmp_path)
    with classroom.site.open("a") as file:
        file.write(f'[grading]\non_submit = ["{PHASE}"]\n')
    folders = Folders(classroom.folder, tmp_path / "running", "small-course")
    folders.running.mkdir()
    folders.prepare()
    demo.fill(Console(file=open(os.devnull, "w")), folders, ["ada", "grace"])  # noqa: SIM115
    entry = arrive(folders.in_exchange("inbound"), "grace", 1, assignment_of("goodput"))
    shutil.copy(ROOT / "solutions/challenges/goodput/torchrun.py", entry / "entry.py")
    (entry / "name.txt").write_text("The Tortoise")

    graded(classroom, folders, until="grading")
    assert not list(folders.graded.glob("*/*")), "it was killed while it judged"
    graded(classroom, folders, until="")
    marks = Course(folders.course).marks(PHASE)
    assert {mark.student: mark.score for mark in marks} == {"ada": 3, "grace": 2}
    for learner in ("ada", "grace"):
        (page,) = folders.in_exchange("feedback", learner).glob("*.html")
        assert "pass_it_on" in page.read_text()
    (result,) = Leaderboard(folders.challenges).results("goodput")
    assert (result.author, result.name, result.fault) == ("grace", "The Tortoise", "")
    assert len(result.values) == 4 and min(result.values.values()) > 20_000
