"""Submissions that are graded as they come in: in turn, so many a day, and none lost when the service is killed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest
import second_exercise
from clocks import ManualClock
from nbgrader.api import Gradebook
from rich.console import Console
from small_classroom import ROOT, Classroom, small_classroom
from waiting import wait_until

from autograder.classroom import configured, demo
from autograder.classroom import site as sites
from autograder.classroom.challenges.entries import assignment_of
from autograder.classroom.challenges.grader import EntryGrader
from autograder.classroom.challenges.leaderboard import Leaderboard
from autograder.classroom.folders import Folders
from autograder.classroom.grading_queue import Done, GradingQueue, Submission, in_turn
from autograder.classroom.grading_service import GradingService
from autograder.classroom.overview.attempts import wrong_answers
from autograder.classroom.overview.class_reader import ClassReader, State
from autograder.classroom.pages.own_course import assignment_facts
from autograder.classroom.pages.page import waiting_text
from autograder.classroom.pages.rendering import page
from autograder.course_folder import Course
from autograder.intake.keeping import discard_files, write_json
from autograder.intake.stamps import FORMAT, Record
from autograder.submissions import with_module

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
    arrive(inbound, "ada", 2)
    newest = arrive(inbound, "ada", 3)
    arrive(inbound, "ada", 4, whole=False)
    arrive(inbound, "ada", 5, name="grace")
    arrive(inbound, "ada", 6, assignment="phase9_other")
    (inbound / "ada" / f"ada+{PHASE}+never+x").mkdir()
    (inbound / "link").symlink_to(inbound / "ada")
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=5)
    assert [one.path for one in queue.waiting("2026-12-01")] == [newest]


def test_a_submission_dated_in_the_future_hides_no_later_one(tmp_path: Path) -> None:
    inbound = tmp_path / "inbound"
    of_a_fast_clock = arrive(inbound, "ada", 59)
    before = of_a_fast_clock.stat().st_ctime
    secret = of_a_fast_clock / "submission_secret.txt"
    os.utime(secret, (0, secret.stat().st_mtime - 60))  # it arrived a minute ago
    later = arrive(inbound, "ada", 0)
    of_a_fast_clock.chmod(0o755)  # moves the time of the folder's last change
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=5)
    (waiting,) = queue.waiting("2026-12-01")
    assert waiting.path == later and waiting.received >= before, "not the time in its name"


CLOSED = """
import os, sys
from pathlib import Path
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config
from autograder.classroom.grading_service import GradingService
from autograder.classroom.grading_queue import GradingQueue
from autograder.intake.collect import ExchangeCollect
from labkit.linux import capabilities

exchange, graded, phase = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
inbound = exchange / "course/inbound"
capabilities.drop_all()  # root reads closed folders, too
for mode in (0o000, 0o400):
    (inbound / "ada").chmod(mode)
    print([one.learner for one in GradingQueue(inbound, graded, [phase], tries_per_day=5).waiting("2026-12-01")])
    config = Config(Exchange={"root": str(exchange)}, CourseDirectory={"course_id": "course", "assignment_id": phase})
    config.CourseDirectory.root = str(graded.parent / f"collected-{mode}")
    coursedir = CourseDirectory(config=config)
    ExchangeCollect(coursedir=coursedir, authenticator=Authenticator(), config=config, own_inbound=True).start()
    print(os.listdir(graded.parent / f"collected-{mode}/submitted"))
(inbound / "ada").chmod(0o700)
"""


def test_a_learner_who_closes_the_own_folder_stops_nobody_else(tmp_path: Path) -> None:
    inbound = tmp_path / "exchange/course/inbound"
    for learner in ("ada", "grace"):
        arrive(inbound, learner, 1)
    command = [sys.executable, "-P", "-c", CLOSED, str(tmp_path / "exchange"), str(tmp_path / "graded"), PHASE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['grace']"] * 4, done.stderr


def test_whatever_a_learner_names_a_folder_the_others_are_in_the_queue(tmp_path: Path) -> None:
    inbound = tmp_path / "inbound"
    good, grace = arrive(inbound, "ada", 1), arrive(inbound, "grace", 1)
    claim = f"ada+{PHASE}+2026-12-01 11:00:00.000000 UTC"
    for odd in (b"x" * (255 - len(claim) - 1), b"\xff", b"a\nb", b"\x1b[2J"):
        folder = os.fsencode(inbound / "ada" / f"{claim}+") + odd
        os.mkdir(folder)
        os.symlink("nowhere", folder + b"/submission_secret.txt")
    (inbound / "ada" / f"{claim}+link").symlink_to(grace)
    os.mkfifo(inbound / "ada" / f"{claim}+pipe")
    (inbound / "ada" / f"{claim}+file").touch()
    for number in range(300):
        (inbound / "ada" / f"ada+{PHASE}+2026-11-01 10:00:00.{number:06} UTC+x").mkdir()
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=5)
    assert [one.path for one in queue.waiting("2026-12-01")] == [good, grace]
    for one in queue.waiting("2026-12-01"):
        queue.begin(one)
        queue.finish(one, Done(one.learner, PHASE, one.path.name, "2026-12-01T10:00:00+00:00", True))
    assert queue.waiting("2026-12-01") == []


def test_a_learner_whose_submissions_are_all_refused_waits_until_tomorrow_too(tmp_path: Path) -> None:
    inbound = tmp_path / "inbound"
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=2)
    refused = 0
    for minute in range(60):
        arrive(inbound, "ada", minute)
        for one in queue.waiting("2026-12-01"):
            refused += 1
            queue.finish(one, Done("ada", PHASE, one.path.name, "2026-12-01T10:00:00+00:00", judged=False))
    assert refused == 20 and len(queue.waiting("2026-12-02")) == 1
    (status,) = queue.status("ada", "2026-12-01")
    assert waiting_text(status) == "It waits for tomorrow (UTC): today's tries are used."


def test_a_submission_with_which_the_service_ends_does_not_block_the_others(tmp_path: Path) -> None:
    inbound, today = tmp_path / "inbound", "2026-12-01"
    worst, good = arrive(inbound, "ada", 1), arrive(inbound, "grace", 2)

    def started() -> GradingQueue:
        return GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=5)

    for _ in range(3):  # each time the service is killed
        first, second = started().waiting(today)
        assert (first.path, second.path) == (worst, good)
        started().begin(first)
    assert [one.path for one in started().waiting(today)] == [good, worst]
    started().begin(second)
    queue = started()
    assert [one.path for one in queue.waiting(today)] == [good, worst], "grace's is being judged"
    queue.finish(second, Done("grace", PHASE, good.name, f"{today}T10:00:00+00:00", True))
    later = arrive(inbound, "grace", 3)
    assert [one.path for one in started().waiting(today)] == [later, worst], "it stays behind, and is not lost"
    # a failure that the service has survived is another matter
    (failed,) = (one for one in queue.waiting(today) if one.learner == "ada")
    queue.put_behind(failed)
    assert [one.path for one in started().waiting(today)] == [worst, later]


def test_in_a_shared_inbound_a_submission_is_its_owner_s(tmp_path: Path) -> None:
    inbound, me = tmp_path / "inbound", pwd.getpwuid(os.geteuid()).pw_name
    mine = arrive(inbound, "", 1, name=me)
    arrive(inbound, "", 2, name="grace")
    (inbound / f"{me}+{PHASE}+2026-12-01 10:03:00.000000 UTC+x").symlink_to(mine)
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE], tries_per_day=5, shared=True)
    assert [(one.learner, one.path) for one in queue.waiting("2026-12-01")] == [(me, mine)]


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


def test_a_learner_sees_the_place_in_the_queue(tmp_path: Path) -> None:
    inbound, today = tmp_path / "inbound", "2026-12-01"
    queue = GradingQueue(inbound, tmp_path / "graded", [PHASE, "phase9_other"], tries_per_day=1)
    for number, learner in enumerate(("ada", "grace", "alan")):
        arrive(inbound, learner, number)
    first, second, third = queue.waiting(today)
    places = {one.learner: queue.status(one.learner, today)[0] for one in (first, second, third)}
    assert [(places[one.learner].place, places[one.learner].waiting) for one in (first, second, third)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    queue.begin(third)
    elsewhere = GradingQueue(inbound, tmp_path / "graded", [PHASE, "phase9_other"], tries_per_day=1)
    assert [one.path for one in elsewhere.waiting(today)] == [third.path, first.path, second.path]
    queue.finish(third, Done(third.learner, PHASE, third.path.name, f"{today}T10:00:00+00:00", True, 2, 3))
    arrive(inbound, third.learner, 30)
    status, other = elsewhere.status(third.learner, today)
    assert (status.place, status.waiting, status.is_unjudged, status.tries_left) == (0, 2, True, 0)
    assert [one.score for one in status.done] == [2] and not other.is_unjudged
    tomorrow = elsewhere.status(third.learner, "2026-12-02")[0]
    assert tomorrow.place == 3, "the one served last waits for the others"

    texts = [waiting_text(one) for one in (places[first.learner], places[second.learner], status, other)]
    assert texts[:2] == ["It is being judged now.", "It waits: place 2 of 3 in the queue."]
    assert texts[2:] == ["It waits for tomorrow (UTC): today's tries are used.", ""]
    given = {"prefix": "/", "course": "x", "challenges": [], "tries": 1, "counts": "best", "servers": None, "queue": 0}
    given |= {"hub": "", "gpus": False, "disk": None, "notices": []}
    shown = page("index", submissions=[(status, texts[2])], **given)
    assert (
        "The best one counts." in shown
        and "2026-12-01 10:00: 2 of 3 points" in shown
        and "0 of 1" in shown
        and "today&#39;s tries" in shown
    )


def test_learners_take_turns() -> None:
    def handed_in(learner: str, seconds: float) -> Submission:
        return Submission(learner, PHASE, Path(f"{learner}{seconds}"), seconds)

    many = [handed_in("ada", second) for second in (1, 2, 3)]
    grace, alan = handed_in("grace", 4), handed_in("alan", 5)
    assert in_turn([*many, alan, grace], served=[]) == [many[0], grace, alan, *many[1:]]
    assert in_turn([*many, alan, grace], served=["grace", "ada"]) == [alan, grace, many[0], *many[1:]]


def test_files_of_the_newest_and_of_the_spared_submission_are_kept(tmp_path: Path) -> None:
    for number in range(8):
        earlier = tmp_path / f"20261127T09000{number}.000000Z"
        earlier.mkdir()
        (earlier / "large").touch()
        moment = datetime(2026, 11, 27, 9, 0, number)
        record = Record("ada", PHASE, moment, moment, moment, "ada", True, "", f"try {number}")
        write_json(earlier.with_name(f"{earlier.name}.json"), record.to_json())
    discard_files(tmp_path, 3, spared="try 2")
    kept = sorted(path.name[14] for path in tmp_path.glob("*Z"))
    assert kept == ["2", "5", "6", "7"] and len(list(tmp_path.glob("*.json"))) == 8


def graded(classroom: Classroom, folders: Folders, until: str = "", more: int = 0) -> None:
    """Run the service until its log contains a text, or so many more are done; then kill it."""
    environment = {
        **classroom.environment,
        configured.SITE: str(classroom.site),
        configured.RUNNING: str(folders.running),
    }
    log, before = classroom.root / "grading.log", len(list(folders.graded.glob("*/*")))
    with log.open("w") as output:
        command = [sys.executable, "-P", "-m", "autograder.classroom.grading_service"]
        service = subprocess.Popen(command, env=environment, cwd=classroom.root, stdout=output, stderr=output)
    try:

        def is_reached() -> bool:
            assert service.poll() is None, log.read_text()
            return until in log.read_text() if until else len(list(folders.graded.glob("*/*"))) >= before + more

        wait_until(is_reached, log.read_text)
    finally:
        service.send_signal(signal.SIGKILL)
        service.wait()


def test_a_submission_on_which_the_grader_fails_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    second_exercise.add_to(tmp_path)
    folders = Folders(tmp_path / "classroom", tmp_path / "running", "course")
    folders.running.mkdir()
    folders.prepare()
    folders.prepare_learner("ada")
    site = sites.Site(grading=sites.Grading(on_submit=[PHASE]))
    clock = ManualClock()
    service = GradingService(configured.Classroom(site, folders, ["ada"]), clock)
    request.addfinalizer(service.close)
    arrive(folders.in_exchange("inbound"), "ada", 1)  # of an assignment that is not released
    assert service.step(), "there is one"
    clock.advance(29)
    assert not service.step(), "it failed less than half a minute ago"
    clock.advance(2)
    assert service.step()


@pytest.mark.slow
def test_submissions_are_judged_side_by_side_and_wait_for_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    classroom = small_classroom(tmp_path)
    folders = Folders(classroom.folder, tmp_path / "running", "small-course")
    folders.running.mkdir()
    folders.prepare()
    demo.fill(Console(file=open(os.devnull, "w")), folders, ["ada", "grace"])  # noqa: SIM115
    entry = arrive(folders.in_exchange("inbound"), "grace", 1, assignment_of("goodput"))
    may_end = threading.Event()

    def grade(_: EntryGrader, one: Submission) -> Done:
        may_end.wait()
        return Done(one.learner, one.assignment, one.path.name, "2026-12-01T10:00:00+00:00", judged=True)

    monkeypatch.setattr(EntryGrader, "grade", grade)
    course, challenges = sites.Grading(on_submit=[PHASE], workers=2), sites.Challenges(open=["goodput"])
    service = GradingService(
        configured.Classroom(sites.Site(grading=course, challenges=challenges), folders, ["ada", "grace"])
    )
    try:
        assert service.step(0)
        begun = json.loads((folders.graded / "begun.json").read_text())
        assert len(begun) == 3 and entry.name in begun
        wait_until(lambda: service.step() and len(service.queue.done()) == 2)
        assert {record.assignment for record in service.queue.done()} == {PHASE}
        marks = Course(folders.course).marks(PHASE)
        assert {mark.student: mark.score for mark in marks} == {"ada": 3, "grace": 2}
        may_end.set()
        wait_until(lambda: service.step() and len(service.queue.done()) == 3)
        assert service.queue.waiting(f"{datetime.now(UTC).date()}") == []
    finally:
        may_end.set()
        service.close()


@pytest.mark.slow
def test_a_killed_service_loses_nothing_and_marks_come_back_with_feedback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    classroom = small_classroom(tmp_path)
    with classroom.site.open("a") as file:
        file.write(f'[grading]\non_submit = ["{PHASE}"]\ncounts = "best"\nfeedback = "titles"\n')
    folders = Folders(classroom.folder, tmp_path / "running", "small-course")
    folders.running.mkdir()
    folders.prepare()
    demo.fill(Console(file=open(os.devnull, "w")), folders, ["ada", "grace"])  # noqa: SIM115
    entry = arrive(folders.in_exchange("inbound"), "grace", 1, assignment_of("goodput"))
    shutil.copy(ROOT / "solutions/challenges/goodput/torchrun.py", entry / "entry.py")
    (entry / "name.txt").write_text("The Tortoise")

    graded(classroom, folders, until="grading")
    assert not list(folders.graded.glob("*/*")), "it was killed while it judged"
    graded(classroom, folders, more=3)
    marks = Course(folders.course).marks(PHASE)
    assert {mark.student: mark.score for mark in marks} == {"ada": 3, "grace": 2}
    for learner in ("ada", "grace"):
        (feedback,) = folders.in_exchange("feedback", learner).glob("*.html")
        assert "pass_it_on" in feedback.read_text() and "Your instructor has chosen" in feedback.read_text()
    (result,) = Leaderboard(folders.challenges).results("goodput")
    assert (result.author, result.name, result.fault) == ("grace", "The Tortoise", "")
    assert len(result.values) == 4 and min(result.values.values()) > 20_000

    # ada hands in once more, a worse one
    (first,) = folders.in_exchange("inbound", "ada").iterdir()
    again = first.with_name(f"ada+{PHASE}+{datetime.now(UTC).strftime(FORMAT)}+again")
    shutil.copytree(first, again)
    (again / "submission_secret.txt").write_text("a" * 64)
    path = again / f"{second_exercise.NOTEBOOK}.ipynb"
    nbformat.write(with_module(nbformat.read(path, as_version=4), second_exercise.NAME, ""), path)
    graded(classroom, folders, more=1)
    scores = sorted(json.loads(record.read_text())["score"] for record in folders.graded.glob("ada/*.json"))
    assert scores == [0, 3], "each has its own record"
    assert Course(folders.course).total(PHASE, "ada") == (3, 3), "the best one counts"
    pages = [page.read_text() for page in folders.in_exchange("feedback", "ada").glob("*.html")]
    assert sorted("<b>3</b> of 3 points" in page for page in pages) == [False, True], "feedback on both"
    assert {path.name for path in (folders.course / "submitted/ada" / PHASE).glob("*.ipynb")} == {path.name}

    queue = GradingQueue.of(folders, sites.load(classroom.site))
    reader = ClassReader(folders, queue)
    states = {learner: one.exercises[0] for learner, (one,) in reader.assignments(["ada", "grace", "emmy"]).items()}
    assert [one.state for one in states.values()] == [State.ALL_MARKS, State.SOME_MARKS, State.NOT_HANDED_IN]
    assert states["ada"].marks is not None and states["ada"].marks.score == 3 and states["ada"].returned
    (wrong,) = wrong_answers(reader.attempts(["ada", "grace", "emmy"]))
    assert (wrong.lost, wrong.learners) == (("one message from each rank",), ("grace",))
    newer = arrive(folders.in_exchange("inbound"), "grace", 2)
    (waits,) = reader.assignments(["grace"])["grace"]
    assert waits.exercises[0].newer_waits, newer
    with Gradebook(f"sqlite:///{folders.course}/gradebook.db") as gradebook:  # a mark that is not returned
        (grade,) = gradebook.find_submission_notebook(second_exercise.NOTEBOOK, PHASE, "grace").grades
        grade.manual_score = 1
        gradebook.db.commit()
    queued = queue.status("grace", f"{datetime.now(UTC).date()}")[0]
    facts = assignment_facts(waits, queued, reader.returned_pages("grace"), {})
    assert (facts["waiting"], facts["place"], facts["tries_left"]) == ("It is being judged now.", 1, 4), facts
    received = datetime.fromtimestamp(newer.stat().st_ctime, UTC).isoformat(timespec="seconds")
    assert facts["handed_in"] == received, "not the time in its name"
    ((marks, name),) = ((one["marks"], one["notebook"]) for one in facts["notebooks"])
    assert (marks["score"], marks["points"], name) == (2, 3, f"{PHASE}/{second_exercise.NOTEBOOK}.ipynb")
    assert (folders.in_exchange("feedback", "grace") / Path(marks["feedback"]).name).is_file()
