"""nbgrader's exchange: release, submit and collect by its own commands, with our collector."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
import second_exercise
from nbgrader.api import Gradebook
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default import ExchangeReleaseAssignment, ExchangeSubmit
from traitlets.config import Config

from autograder.course_folder import CONFIG_FILE
from autograder.intake import read_release, receive
from autograder.intake.collect import ExchangeCollect
from autograder.intake.keeping import write_json
from autograder.intake.stamps import FORMAT, current_record
from autograder.submissions import with_module

ASSIGNMENT, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
COURSE = "distributed-training"
RELEASED = second_exercise.notebook(second_exercise.NAME, "x = 'template'\n", points=3)

AS_ROOT = os.geteuid() == 0
ME = pwd.getpwuid(os.geteuid()).pw_name
OTHER = next(user for user in pwd.getpwall() if user.pw_uid not in (0, os.geteuid()))
LEARNER, OTHER_LEARNER = (OTHER.pw_name, ME) if AS_ROOT else (ME, OTHER.pw_name)
"""Root can give files to any user; anyone else submits as themselves and claims to be another user."""


class Class:
    """A course and its exchange in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbound = folder / "exchange" / COURSE / "inbound"
        self.work = folder / "work" / ASSIGNMENT
        self.course = folder / "course"
        release = self.course / "release" / ASSIGNMENT
        for path in (release, self.work, folder / "exchange"):
            path.mkdir(parents=True)
        (folder / "exchange").chmod(0o777)
        nbformat.write(RELEASED, release / f"{NOTEBOOK}.ipynb")
        self.config = Config()
        self.config.Exchange.root = str(folder / "exchange")
        self.config.Exchange.cache = str(folder / "cache")
        self.config.Exchange.assignment_dir = str(folder / "work")
        self.config.CourseDirectory.root = str(self.course)
        self.config.CourseDirectory.course_id = COURSE
        self._does(ExchangeReleaseAssignment)

    def _does(self, kind: type[Any], student: str = "*", **options: Any) -> Any:
        course = CourseDirectory(config=self.config, assignment_id=ASSIGNMENT, student_id=student)
        exchange = kind(coursedir=course, authenticator=Authenticator(), config=self.config, **options)
        exchange.start()
        return exchange

    def submit(self, student: str, module: str = "x = 1\n", owner: str = LEARNER) -> Path:
        """`nbgrader submit` of a notebook with that module; returns the folder in the exchange."""
        before = set(self.inbound.iterdir())
        nbformat.write(with_module(RELEASED, second_exercise.NAME, module), self.work / f"{NOTEBOOK}.ipynb")
        self._does(ExchangeSubmit, student)
        (folder,) = set(self.inbound.iterdir()) - before
        give(folder, owner)
        return folder

    def collect(self, **options: Any) -> dict[str, str]:
        """`nbgrader collect`; returns refusals with reasons, by folder."""
        done = self._does(ExchangeCollect, **options)
        return {name: refusal.reason for name, refusal in done.refused.items()}

    def submitted(self, student: str = LEARNER) -> Path:
        return self.course / "submitted" / student / ASSIGNMENT

    def record(self, student: str = LEARNER) -> Any:
        return current_record(self.course / "collected" / student / ASSIGNMENT)

    def module(self, student: str = LEARNER) -> str:
        intake = receive(self.submitted(student), read_release(self.course / "release" / ASSIGNMENT))
        source: str = intake.notebooks[NOTEBOOK].cells[2].source
        return source.split("\n", 1)[1]


def give(folder: Path, owner: str) -> None:
    """Give a whole folder to another user, where permitted."""
    if AS_ROOT:
        uid = pwd.getpwnam(owner).pw_uid
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, -1, follow_symlinks=False)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Class:
    # nbgrader starts `alembic` by name
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return Class(tmp_path)


def test_a_submission_is_collected_with_its_owner_time_and_hash(lab: Class) -> None:
    folder = lab.submit(LEARNER)
    assert lab.collect() == {}
    record = lab.record()
    assert (record.student, record.owner, record.owner_checked) == (LEARNER, LEARNER, True)
    assert record.source == folder.name and record.handed_in == record.claimed
    assert (lab.submitted() / "timestamp.txt").read_text() == record.handed_in.strftime(FORMAT)
    assert len((lab.submitted() / "submission_secret.txt").read_text()) == 128
    intake = receive(lab.submitted(), read_release(lab.course / "release" / ASSIGNMENT), record=record)
    assert (intake.content_hash, intake.handed_in, intake.recorded) == (record.content_hash, record.handed_in, True)
    assert intake.notes == () and "x = 1" in lab.module()


def test_a_submission_in_anothers_name_is_refused_and_the_others_are_collected(lab: Class) -> None:
    forged = lab.submit(OTHER_LEARNER)
    lab.submit(LEARNER)
    (reason,) = lab.collect().values()
    assert OTHER_LEARNER in reason and LEARNER in reason
    assert lab.submitted().is_dir() and not lab.submitted(OTHER_LEARNER).exists()
    (kept,) = json.loads((lab.course / "collected" / ".refused" / f"{ASSIGNMENT}.json").read_text())
    assert (kept["folder"], kept["owner"]) == (forged.name, LEARNER)


def test_a_course_of_one_user_says_so_in_its_configuration(lab: Class) -> None:
    lab.submit("ann")
    (reason,) = lab.collect().values()
    assert "there is no user 'ann'" in reason
    assert lab.collect(check_owner=False) == {}
    assert (lab.record("ann").owner, lab.record("ann").owner_checked) == (LEARNER, False)


@pytest.mark.skipif(not AS_ROOT, reason="needs root: files of two users")
def test_a_file_that_somebody_else_put_in_refuses_the_submission(lab: Class) -> None:
    folder = lab.submit(LEARNER)
    os.chown(folder / f"{NOTEBOOK}.ipynb", 0, -1)
    (reason,) = lab.collect().values()
    assert f"`{NOTEBOOK}.ipynb` in it" in reason and "'root'" in reason


def test_earlier_submissions_are_kept(lab: Class) -> None:
    lab.submit(LEARNER, "x = 'first'\n")
    lab.collect()
    first = lab.record()
    lab.submit(LEARNER, "x = 'second'\n")
    lab.collect()
    assert "first" in lab.module() and lab.record() == first
    lab.collect(update=True)
    assert "second" in lab.module() and lab.record().handed_in > first.handed_in
    kept = sorted(path.name for path in (lab.course / "collected" / LEARNER / ASSIGNMENT).iterdir())
    name = first.handed_in.strftime("%Y%m%dT%H%M%S.%fZ")
    assert kept == [name, f"{name}.json", "current.json"]
    assert json.loads((lab.course / "collected" / LEARNER / ASSIGNMENT / f"{name}.json").read_text()) == first.to_json()
    lab.collect(update=True)  # nothing newer
    assert len(list((lab.course / "collected" / LEARNER / ASSIGNMENT).iterdir())) == 3


def test_the_chosen_submission_is_collected_though_a_newer_one_is_half_written(lab: Class) -> None:
    chosen = lab.submit(LEARNER, "x = 'whole'\n")
    later = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=30)
    half = renamed(lab.submit(LEARNER, "x = 'half'\n"), later)
    (half / "submission_secret.txt").unlink()
    assert lab.collect(only=chosen.name) == {}
    assert "whole" in lab.module() and lab.record().source == chosen.name


def renamed(folder: Path, claimed: datetime) -> Path:
    student, assignment, _, random = folder.name.split("+")
    return folder.rename(folder.with_name(f"{student}+{assignment}+{claimed.strftime(FORMAT)}+{random}"))


def test_a_time_that_the_kernel_contradicts_does_not_count(lab: Class) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    folder = renamed(lab.submit(LEARNER), now - timedelta(days=3))
    (folder / "timestamp.txt").write_text("2001-01-01 00:00:00 UTC")
    assert lab.collect() == {}
    record = lab.record()
    assert abs(record.handed_in - now) < timedelta(hours=1) and record.claimed < now - timedelta(days=2)
    assert "which counts" in record.notes[0]
    assert (lab.submitted() / "timestamp.txt").read_text() == record.handed_in.strftime(FORMAT)
    shutil.rmtree(lab.submitted())
    lab.collect(believe_names=True)
    assert lab.record().handed_in == record.claimed


def test_before_the_due_date_means_before_it_by_the_kernels_clock(lab: Class) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    with Gradebook(f"sqlite:///{lab.course}/gradebook.db") as gradebook:
        gradebook.add_assignment(ASSIGNMENT, duedate=now + timedelta(hours=1))
    lab.submit(LEARNER, "x = 'first'\n")
    fast = renamed(lab.submit(LEARNER, "x = 'of a fast clock'\n"), now + timedelta(hours=2))
    lab.collect(before_duedate=True)
    assert "of a fast clock" in lab.module(), "it has arrived in time"
    with Gradebook(f"sqlite:///{lab.course}/gradebook.db") as gradebook:
        gradebook.update_or_create_assignment(ASSIGNMENT, duedate=now - timedelta(days=1))
    renamed(fast, now - timedelta(days=2))
    lab.collect(before_duedate=True)
    assert lab.record().handed_in > now - timedelta(hours=1)


@pytest.mark.parametrize("skew", [timedelta(days=400), timedelta(seconds=30)])
def test_a_submission_dated_in_the_future_hides_no_later_one(skew: timedelta, lab: Class) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    renamed(lab.submit(LEARNER, "x = 'of a fast clock'\n"), now + skew)
    assert lab.collect() == {}
    assert lab.record().handed_in < now + timedelta(seconds=20), "the time of receipt"
    later = lab.submit(LEARNER, "x = 'later'\n")
    assert lab.collect(update=True) == {}
    assert "later" in lab.module() and lab.record().source == later.name
    assert lab.collect(update=True) == {} and lab.record().source == later.name


def test_an_exchange_that_was_copied_is_ordered_by_names(lab: Class) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    renamed(lab.submit(LEARNER, "x = 'newest'\n"), now - timedelta(days=1))
    renamed(lab.submit(LEARNER, "x = 'copied last'\n"), now - timedelta(days=2))
    lab.collect(believe_names=True)
    assert "newest" in lab.module()


def test_a_time_in_the_future_of_a_submission_copied_by_hand_hides_no_later_one(lab: Class) -> None:
    by_hand = lab.submitted()
    by_hand.mkdir(parents=True)
    (by_hand / "timestamp.txt").write_text("2099-01-01 00:00:00 UTC")
    lab.submit(LEARNER, "x = 'later'\n")
    lab.collect(update=True)
    assert "later" in lab.module()


def test_a_submission_that_is_only_restored_is_not_late_for_it(lab: Class) -> None:
    folder = lab.submit(LEARNER)
    lab.collect()
    collected = lab.record()
    restored = folder.with_name("restored")
    shutil.copytree(folder, restored)  # all its files are new to the kernel
    shutil.rmtree(folder)
    restored.rename(folder)
    give(folder, LEARNER)
    old = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    write_json(
        lab.course / "collected" / LEARNER / ASSIGNMENT / "current.json",
        replace(collected, handed_in=old, claimed=old, received=old).to_json(),
    )
    lab.collect(update=True)
    assert lab.record().handed_in == old


def test_a_zone_that_is_unknown_costs_no_submission(lab: Class) -> None:
    folder = lab.submit(LEARNER)
    student, assignment, time, random = folder.name.split("+")
    folder.rename(folder.with_name(f"{student}+{assignment}+{time.replace('UTC', 'CEST')}+{random}"))
    assert lab.collect() == {} and lab.submitted().is_dir()


def link(folder: Path, secret: Path) -> str:
    (folder / "data.csv").symlink_to(secret)
    return "`data.csv` was left out: it is a link"


def hard_link(folder: Path, secret: Path) -> str:
    os.link(secret, folder / "data.csv")
    return "`data.csv` was left out: it is a hard link"


def linked_folder(folder: Path, secret: Path) -> str:
    (folder / "data").symlink_to(secret.parent, target_is_directory=True)
    return "`data` was left out: it is a link"


def pipe(folder: Path, secret: Path) -> str:
    os.mkfifo(folder / "timestamp.csv")
    return "`timestamp.csv` was left out: it is not a regular file"


def odd_name(folder: Path, secret: Path) -> str:
    (folder / "--force\n\x1b[2J").write_text("")
    return "`--force??[2J` was left out: its name is odd"


def stamp_as_link(folder: Path, secret: Path) -> str:
    (folder / "timestamp.txt").unlink()
    (folder / "timestamp.txt").symlink_to("/dev/zero")
    return ""


def large(folder: Path, secret: Path) -> str:
    with (folder / "a.bin").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: it takes no space
    return "`a.bin` was left out: it is larger than"


@pytest.mark.parametrize("change", [link, hard_link, linked_folder, pipe, odd_name, stamp_as_link, large])
def test_nothing_but_plain_files_is_collected(change: Callable[[Path, Path], str], lab: Class) -> None:
    folder = lab.submit(LEARNER)
    secret = lab.folder / "gradebook" / "secret.csv"
    secret.parent.mkdir()
    secret.write_text("everybody's marks")
    note = change(folder, secret)
    give(folder, LEARNER)
    assert lab.collect() == {}
    files = {path.name for path in lab.submitted().rglob("*")}
    assert files == {f"{NOTEBOOK}.ipynb", "timestamp.txt", "submission_secret.txt"}
    assert not any(path.is_symlink() for path in lab.submitted().rglob("*"))
    notes = lab.record().notes
    assert (not note and notes == ()) or (len(notes) == 1 and notes[0].startswith(note))


NAMES = (
    f"..+{ASSIGNMENT}+2026-01-01 00:00:00.0 UTC+x",
    f".+{ASSIGNMENT}+2026-01-01 00:00:00.0 UTC+x",
    f"-rf+{ASSIGNMENT}+2026-01-01 00:00:00.0 UTC+x",
    f"new\nline+{ASSIGNMENT}+2026-01-01 00:00:00.0 UTC+x",
    f"{{0.__class__}}+{ASSIGNMENT}+2026-01-01 00:00:00.0 UTC+x",
    f"{LEARNER}+{ASSIGNMENT}+tomorrow",
    f"{LEARNER}+{ASSIGNMENT}+9999-99-99 00:00:00 UTC+x",
    f"{LEARNER}+{ASSIGNMENT}+2026-01-01 00:00:00 " + "+" * 50,
    "\udcff" + f"+{ASSIGNMENT}+2026-01-01 00:00:00.0 UTC+x",
)


def test_names_that_make_no_sense_stop_nobody(lab: Class) -> None:
    for name in NAMES:
        (lab.inbound / name).mkdir()
    (lab.inbound / f"{LEARNER}+{ASSIGNMENT}+2026-01-01 00:00:00 UTC+file").write_text("")
    (lab.inbound / f"{LEARNER}+{ASSIGNMENT}+2026-01-01 00:00:00 UTC+link").symlink_to(lab.folder)
    lab.submit(LEARNER)
    refused = lab.collect(check_owner=False)
    assert lab.submitted().is_dir()
    assert [path.name for path in (lab.course / "submitted").iterdir()] == [LEARNER]
    assert len(refused) >= len(NAMES) - 1  # the one with too many plus signs belongs to no learner
    assert all(reason.isprintable() for reason in refused.values())


def test_a_full_disk_is_nobodys_refusal(lab: Class) -> None:
    lab.submit(LEARNER)
    lab.course.joinpath("submitted").write_text("")  # where a folder should be
    with pytest.raises(ExchangeError, match="could not be collected"):
        lab.collect()
    lab.course.joinpath("submitted").unlink()
    assert lab.collect() == {} and lab.submitted().is_dir()


def test_the_command_of_nbgrader_refuses_too(lab: Class) -> None:
    lab.submit(OTHER_LEARNER)
    lab.submit(LEARNER)
    command = [sys.executable, "-m", "nbgrader", "collect", ASSIGNMENT, f"--Exchange.root={lab.folder / 'exchange'}"]
    environment = {**os.environ, "LABKIT_COURSE": str(lab.course)}
    done = subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Refused" in done.stderr and "1 submissions were refused" in done.stderr
    assert [path.name for path in (lab.course / "submitted").iterdir()] == [LEARNER]
