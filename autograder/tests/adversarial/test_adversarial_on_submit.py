"""The class through the hub's grading service: handed in through the exchange, graded as it comes in, in turn."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pass_around
import pytest
from classmates import CLASS, Classmate
from nbformat import read
from nbgrader.utils import notebook_hash
from outcomes import GRADER_BYTES, LIMITS, assert_harmless, assert_in_use, contents, feedback, unlike
from waiting import wait_until

from autograder.classroom import configured
from autograder.classroom import site as sites
from autograder.classroom.folders import Folders, give
from autograder.classroom.grading_queue import Done, GradingQueue
from autograder.course_folder import Course
from autograder.intake.stamps import FORMAT
from autograder.sandbox import Sandbox

pytestmark = [
    # in CI it is required: without it these tests fail
    pytest.mark.skipif(not Sandbox().available and os.environ.get("CI") != "true", reason="needs namespaces"),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

PHASE, NOTEBOOK = pass_around.PHASE, pass_around.NOTEBOOK
SECRET = "not for learners"

SOME = [
    *("isend", "one_after_the_other"),
    *("endless_loop", "sixty_four_gibibytes", "full_disk", "memory_bomb_in_json"),
    *("false_points", "searches_the_files", "to_the_gradebook", "to_another_s_folder"),
    *("output_of_a_gigabyte", "cells_a_million_deep", "not_json", "odd_names", "false_stamps", "script_in_every_cell"),
]
"""Classmates in the usual run: one or two for each kind of attack, but for those that take much processor time."""

MALLORY, EVE = "mallory", "eve"
"""Attack the queue itself: with hundreds of submissions, and with one that changes while it is copied."""
TRIES = 3

SERVE = """
import json, resource, select, subprocess, sys
import psutil
from labkit.linux.prctl import adopt_orphans

adopt_orphans()  # so that whatever is left behind becomes a child of this process
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
started = 0
while True:  # as the hub does
    command = [sys.executable, "-P", "-m", "autograder.classroom.grading_service"]
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    started += 1
    while service.poll() is None and not (asked := select.select([sys.stdin], [], [], 0.5)[0]):
        pass
    if asked:
        break
service.kill()
service.wait()
left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=300)[1]
print(json.dumps([started, [" ".join(process.cmdline()) for process in left]]))
"""


@dataclass
class Exchange:
    """A classroom without its hub: the grading service, and learners who hand in."""

    folders: Folders
    site: Path
    course: Course
    queue: GradingQueue
    log: Path
    handed_in: dict[str, list[Path]] = field(default_factory=dict)
    """Folders in the exchange, by learner."""

    def hand_in(self, learner: str, made: Path, part: str = "") -> Path:
        """Move what was made into the exchange, as nbgrader names it and with its two stamps. part: of the name."""
        inbound, now = self.folders.in_exchange("inbound", learner), datetime.now(UTC)
        stamp = now.strftime(FORMAT)
        place = inbound / f"{learner}+{PHASE}+{stamp}+{part or secrets.token_hex(6)}"
        if made.is_symlink():
            place.symlink_to(made.resolve())
        else:
            for name, text in {"timestamp.txt": stamp, "submission_secret.txt": secrets.token_hex(64)}.items():
                if not (made / name).exists():
                    (made / name).write_text(text)
            for link in [path for path in made.iterdir() if path.is_symlink() and path.exists()]:
                target = link.resolve()  # relative ones would lead nowhere from there
                link.unlink()
                link.symlink_to(target)
            self.owned(made, learner)  # before: the service may take it at once
            made.rename(place)
        self.handed_in.setdefault(learner, []).append(place)
        return place

    def owned(self, place: Path, learner: str) -> None:
        """Give a submission to its learner, where root starts the hub."""
        uid = self.folders.prepare_learner(learner)
        if uid is not None:
            give(place, uid)

    def made(self, learner: str, module: str) -> Path:
        """Make a notebook with this module, to hand in."""
        folder = self.course.folder / "made" / secrets.token_hex(6) / learner
        folder.mkdir(parents=True)
        pass_around.write(folder, self.course.released(PHASE, NOTEBOOK), module)
        return folder

    def waiting(self) -> list[str]:
        """Return who waits, next one first."""
        return [one.learner for one in self.queue.waiting(datetime.now(UTC).date().isoformat())]

    def done(self, learner: str) -> list[Done]:
        return [one for one in self.queue.done() if one.learner == learner]

    def order(self) -> list[str]:
        """Return whose submissions were judged, in the order in which that began."""
        return re.findall(rf"grading {PHASE} of (\w+);", self.log.read_text())

    @contextmanager
    def served(self, scratch: Path) -> Iterator[list[object]]:
        """Run the service; afterwards the list holds how often it was started, and what processes it left behind."""
        environment = {
            **os.environ,
            configured.SITE: str(self.site),
            configured.RUNNING: str(self.folders.running),
            "TMPDIR": str(scratch),
            "LABKIT_SECRET": SECRET,
        }
        found: list[object] = []
        with self.log.open("w") as log:
            command = [sys.executable, "-c", SERVE, str(GRADER_BYTES)]
            server = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
            try:
                yield found
            finally:
                found += json.loads(server.communicate()[0] or "[0, []]")


@dataclass(frozen=True)
class Graded:
    """The class after the queue has become empty."""

    exchange: Exchange
    learners: Sequence[Classmate]
    services: int
    """How often the service was started."""
    left: list[str]
    """Processes still running after its end, by command."""
    changed: set[str]
    """Files of the lab's tree that have changed."""
    scratch: Path
    shared: set[str]
    """New files in /dev/shm."""

    def page(self, learner: str) -> str:
        """Return the feedback that has come back to a learner; empty if none has."""
        pages = sorted(self.exchange.folders.in_exchange("feedback", learner).iterdir())
        return "\n".join(path.read_text() for path in pages)


def until(exchange: Exchange, happened: Callable[[], bool]) -> None:
    """Wait, as long as one submission after the other is graded."""
    while not happened():
        done = len(exchange.queue.done())
        wait_until(
            lambda done=done: happened() or len(exchange.queue.done()) > done,  # type: ignore[misc]
            lambda: exchange.log.read_text()[-5000:],
            pause_seconds=0.2,
        )


def opened(tree: Path, folder: Path, learners: Sequence[str]) -> Exchange:
    """Return a course whose one assignment is released and graded on submit."""
    site = folder / "site.toml"
    site.write_text(
        f'[hub]\nfolder = "{folder / "classroom"}"\n[course]\nname = "course"\n'
        f'[grading]\non_submit = ["{PHASE}"]\ntries_per_day = {TRIES}\n'
    )
    folders = Folders(folder / "classroom", folder / "running", "course")
    folders.running.mkdir()
    folders.prepare()
    for name in learners:
        folders.prepare_learner(name)
    settings = [f"c.{kind}.{name} = {value}" for kind, values in LIMITS.items() for name, value in values.items()]
    (folders.course / "nbgrader_config.py").write_text("\n".join(["c = get_config()", *settings]))
    course = Course(folders.course)
    course.release(PHASE)
    return Exchange(folders, site, course, GradingQueue.of(folders, sites.load(site)), folder / "grading.log")


def flood(exchange: Exchange) -> None:
    """Hand in hundreds of submissions of one learner, and whatever else a folder of submissions can hold."""
    inbound = exchange.folders.in_exchange("inbound", MALLORY)
    earlier = datetime.now(UTC) - timedelta(hours=1)
    first = exchange.made(MALLORY, "")
    for number in range(300):
        stamp = (earlier + timedelta(seconds=number)).strftime(FORMAT)
        place = inbound / f"{MALLORY}+{PHASE}+{stamp}+{number}"
        shutil.copytree(first, place)
        (place / "submission_secret.txt").write_text(secrets.token_hex(64))
    claim = f"{MALLORY}+{PHASE}+{(earlier + timedelta(days=1)).strftime(FORMAT)}"
    (inbound / f"{claim}+link").symlink_to(exchange.handed_in["isend"][0])
    os.mkfifo(inbound / f"{claim}+pipe")
    (inbound / f"{claim}+file").write_text("")
    (inbound / f"{claim}+..").mkdir()
    for name in (b"\xff", b"a\nb", b"\x1b[2J", b"x" * (254 - len(claim))):
        folder = os.fsencode(inbound / claim) + b"+" + name
        os.mkdir(folder)
        with open(folder + b"/submission_secret.txt", "w") as file:
            file.write("a" * 64)
    (inbound / f"isend+{PHASE}+{earlier.strftime(FORMAT)}+forged").mkdir()
    exchange.hand_in(MALLORY, first)


@contextmanager
def changing(path: Path) -> Iterator[threading.Event]:
    """Change a file without end, until the event is set."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            with path.open("ab") as file:
                file.write(b" ")
            stop.wait(0.001)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


def grade_on_submit(tree: Path, learners: Sequence[Classmate]) -> Graded:
    """Let all hand in, the hostile first, and mallory whenever it is possible; wait until nobody waits."""
    folder = tree.parent / f"{tree.name}-on-submit-{len(learners)}"
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    exchange = opened(tree, folder, [MALLORY, EVE, *(one.name for one in learners)])
    before, shared = contents([tree]), set(os.listdir("/dev/shm"))

    honest = [one for one in learners if one.is_honest]
    made = {one.name: exchange.folders.course / "made" / one.name / PHASE for one in (*honest, *learners)}
    for one in learners:  # links of the hostile lead to what the honest have made
        made[one.name].mkdir(parents=True)
        one.hand_in(made[one.name], exchange.course.released(PHASE, NOTEBOOK))
    exchange.handed_in["isend"] = [made["isend"]]
    flood(exchange)
    large = exchange.made(EVE, pass_around.SOLUTION)
    (large / "data").write_bytes(bytes(40 << 20))
    changed_file = exchange.hand_in(EVE, large) / "data"
    for one in learners:
        if not one.is_honest:
            exchange.hand_in(one.name, made[one.name])
    exchange.handed_in.pop("isend")
    for one in honest:
        copy = made[one.name].with_name("copy")
        shutil.copytree(made[one.name], copy)
        exchange.hand_in(one.name, copy)

    with changing(changed_file) as stop, exchange.served(scratch) as ended:
        for tries in range(1, TRIES):
            until(exchange, lambda tries=tries: len(exchange.done(MALLORY)) >= tries)  # type: ignore[misc]
            exchange.hand_in(MALLORY, exchange.made(MALLORY, ""))
        until(exchange, lambda: bool(exchange.done(EVE)))
        stop.set()
        exchange.hand_in(EVE, exchange.made(EVE, pass_around.SOLUTION))
        until(exchange, lambda: not exchange.waiting())
    services, left = ended
    now = contents([tree])
    changed = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
    return Graded(exchange, learners, services, left, changed, scratch, set(os.listdir("/dev/shm")) - shared)  # type: ignore[arg-type]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param([one for one in CLASS if one.name in SOME], id="some"),
        pytest.param(CLASS, id="all", marks=pytest.mark.exhaustive),
    ],
)
def graded(request: pytest.FixtureRequest, tree: Path) -> Graded:
    return grade_on_submit(tree, request.param)


def test_each_gets_what_they_deserve_and_reads_it(graded: Graded) -> None:
    course, wrong = graded.exchange.course, []
    marks = {mark.student: mark.score for mark in course.marks(PHASE)}
    for one in graded.learners:
        if graded.exchange.handed_in[one.name][0].is_symlink():
            assert one.name not in marks, "a link is no submission"
        elif not one.open:
            (done,) = graded.exchange.done(one.name)
            if not done.judged:
                wrong.append(f"{one.name}: {done.problem}")
                continue
            wrong.append(unlike(one, marks[one.name], feedback(course, one.name)))
            assert (done.score, done.max_score) == (marks[one.name], pass_around.POINTS)
    assert not any(wrong), "\n\n".join(filter(None, wrong))
    assert marks[EVE] == pass_around.POINTS and marks[MALLORY] == 0


def test_the_service_outlives_them_all_and_leaves_nothing_behind(graded: Graded) -> None:
    assert graded.services == 1, graded.exchange.log.read_text()
    assert graded.left == []
    assert_in_use(graded.shared)
    assert list(graded.scratch.iterdir()) == []
    assert graded.changed == set()
    classroom = graded.exchange.folders.root
    assert {path.name for path in classroom.iterdir()} == {"course", "hub", "homes", "exchange", "graded"}
    assert not any(path for name in ("homes", "hub") for path in (classroom / name).rglob("*") if path.is_file())


def test_a_learner_with_hundreds_of_submissions_waits_for_all_others(graded: Graded) -> None:
    order = graded.exchange.order()
    assert order.count(MALLORY) == TRIES == len(graded.exchange.done(MALLORY))
    second = [place for place, name in enumerate(order) if name == MALLORY][1]
    assert {one.name for one in graded.learners if one.is_honest} <= set(order[:second])
    assert len(graded.exchange.handed_in[MALLORY]) == TRIES, "the newest each time"
    names = {one.folder for one in graded.exchange.done(MALLORY)}
    assert names == {place.name for place in graded.exchange.handed_in[MALLORY]}


def test_a_submission_that_changes_while_it_is_copied_is_refused(graded: Graded) -> None:
    first, second = graded.exchange.done(EVE)
    assert (second.judged, second.score) == (True, pass_around.POINTS)
    # sometimes it is copied between two changes
    assert first.judged or "refused" in first.problem


def test_the_gradebook_is_whole_and_has_nobody_else(graded: Graded) -> None:
    course = graded.exchange.course
    with sqlite3.connect(course.folder / "gradebook.db") as gradebook:
        assert gradebook.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    known = {one.name for one in graded.learners} | {MALLORY, EVE}
    for mark in course.marks(PHASE):
        assert mark.student in known
        assert (mark.notebook, mark.cell, mark.max_score) == (NOTEBOOK, "grade_pass_around", pass_around.POINTS)


def test_feedback_comes_back_to_its_author_with_nothing_that_is_not_for_learners(graded: Graded) -> None:
    folders, course = graded.exchange.folders, graded.exchange.course
    hidden = [line.strip() for line in pass_around.RUBRIC.splitlines() if "draw" in line or "expect(" in line]
    hidden += [SECRET, "SQLite format 3", "### BEGIN SOLUTION"]
    assert len(hidden) > 20
    for one in graded.learners:
        pages = {path.name for path in folders.in_exchange("feedback", one.name).iterdir()}
        submitted = course.folder / "received" / one.name / PHASE
        if graded.exchange.handed_in[one.name][0].is_symlink():
            assert pages == set()
            continue
        secret = (submitted / "submission_secret.txt").read_text()
        assert pages == {f"{notebook_hash(secret=secret, notebook_id=NOTEBOOK)}.html"}, one.name
        page, own = graded.page(one.name), one.path.read_text() + str(read(submitted / f"{NOTEBOOK}.ipynb", 4).cells)
        assert_harmless(page)
        assert len(page) < 5_000_000
        if not one.is_honest:
            seen = [text for text in hidden if text in page and text not in own]
            assert seen == [], (one.name, seen)
        others = [name for name in graded.exchange.handed_in if name not in (one.name, "to_another_s_folder")]
        for place in (place for name in others for place in graded.exchange.handed_in[name]):
            assert (place / "submission_secret.txt").read_text()[:64] not in page
