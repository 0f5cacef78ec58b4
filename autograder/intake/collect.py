"""`nbgrader collect`, for an exchange in which everybody may write.

nbgrader's own follows links, trusts the name and the time in a folder's name, and only warns when the folder is not its
author's. Here a submission is refused, with a reason, if any of its files is not its author's or if it cannot be read;
all others are collected. Of several submissions, the one that the exchange received last is taken. A time counts only
if the kernel confirms it: learners can name their folder as they like and change files in it after the deadline, but
cannot backdate that change.

    submitted/STUDENT/ASSIGNMENT/             what is graded: plain files, and the time in `timestamp.txt`
    collected/STUDENT/ASSIGNMENT/current.json owner, times and content hash of it
    collected/STUDENT/ASSIGNMENT/TIME/        earlier ones, each with its TIME.json
    collected/.refused/ASSIGNMENT.json        what the last collect refused, and why
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.exchange.default import ExchangeCollect as NbGraderCollect
from nbgrader.utils import check_mode
from traitlets import Bool, Float, Unicode

from autograder.intake.folder import (
    STAMPS,
    FolderEntry,
    content_hash,
    is_odd,
    opened,
    printable,
    shown,
    walk,
)
from autograder.intake.keeping import copy_plain_files, put_by, write_json
from autograder.intake.limits import EntryRefused, FilesChanged, IntakeFailed, Limits
from autograder.intake.stamps import FORMAT, Record, current_record, in_utc, received_at, stamp_in, time_in_name

COLLECTED = "collected"
_SHOWN = 20
_TRIES = 20
"""Maximum submissions of one learner that are examined."""
_KEPT = 1000
"""Maximum refusals that are recorded."""
_LISTED = 10_000
"""Maximum names in a learner's own folder that are read: a learner may make any number of folders."""


@dataclass(frozen=True)
class Arrival:
    """A folder in the exchange, with the learner that its name claims."""

    student: str
    claimed: datetime
    path: Path
    status: os.stat_result

    @property
    def received(self) -> datetime:
        """Time of its receipt, in UTC without a time zone."""
        return in_utc(received_at(self.path, self.status))


@dataclass(frozen=True)
class Refusal:
    """A folder in the exchange that was not collected."""

    folder: str
    owner: str
    reason: str


class ExchangeCollect(NbGraderCollect):  # type: ignore[misc]  # nbgrader has no types
    """Replaces nbgrader's collector, by `c.ExchangeFactory.collect`.

    `c.ExchangeCollect.check_owner` is for systems where each learner is a user. Where all share one user, as in
    containers, nothing in the exchange shows who wrote a file: set it to False to collect anyway.
    """

    own_inbound = Bool(
        False,
        help="`inbound/` has a folder for each learner, the only one in which that learner can write: as on the lab's "
        "hub. The folder is then the proof of who wrote a submission, and owners are not checked.",
    ).tag(config=True)
    only = Unicode(
        "",
        help="Name of the one folder to collect: whoever chose it has seen that it is complete. A newer one may be "
        "half-written. Empty: the newest of each learner.",
    ).tag(config=True)
    believe_names = Bool(
        False,
        help="Take the time in a folder's name though its files were changed later, as after the exchange was copied.",
    ).tag(config=True)
    tolerance = Float(60, help="Seconds that handing in may take, and that clocks may differ.").tag(config=True)

    def init_src(self) -> None:
        """Find the submission of each learner that should be collected."""
        course = self.coursedir
        if not course.course_id:
            self.fail("No course id specified. Re-run with --course flag.")
        self.inbound_path = os.path.join(self.root, course.course_id, "inbound")
        if not os.path.isdir(self.inbound_path):
            self.fail(f"Course not found: {self.inbound_path}")
        if not check_mode(self.inbound_path, read=True, execute=True):
            self.fail(f"You don't have read permissions for the directory: {self.inbound_path}")
        self.refused: dict[str, Refusal] = {}
        self._refusals = 0
        self._failed: list[str] = []
        duedate = self._duedate() if self.before_duedate else None
        by_student: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in self._arrivals():
            arrivals = by_student[arrival.student]
            arrivals.append(arrival)
            if len(arrivals) > 4 * _TRIES:  # a learner who submits without end
                arrivals[:] = self._candidates(arrivals, duedate)
        self.src_records = [self._choose(arrivals, duedate) for _, arrivals in sorted(by_student.items())]

    def copy_files(self) -> None:
        """Collect the submissions found. Raises ExchangeError at the end if there was an infrastructure failure."""
        for arrival in self.src_records:
            try:
                self._collect(arrival)
            except (EntryRefused, FilesChanged) as problem:
                self._refuse(arrival.path.name, arrival.status, f"{problem}")
            except (IntakeFailed, OSError) as problem:
                self.log.error("Not collected: %s: %s", shown(arrival.path.name), problem)
                self._failed.append(arrival.student)
        if not self.src_records:
            self.log.warning("No submissions of '%s' to collect", self.coursedir.assignment_id)
        self._write_refused()
        if self._failed:
            self.fail(f"{len(self._failed)} submissions could not be collected; run the command again")

    @property
    def checks_owner(self) -> bool:
        """Whether a submission must belong to the learner whom it names, as users of this machine."""
        return bool(self.check_owner) and not self.own_inbound

    def _duedate(self) -> datetime | None:
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            try:
                due: datetime | None = gradebook.find_assignment(self.coursedir.assignment_id).duedate
            except MissingEntry:
                return None
        return due

    def _arrivals(self) -> Iterator[Arrival]:
        """Yield the assignment's folders that belong to the learner that they name; refuse the others."""
        course = self.coursedir
        assignment = re.escape(course.assignment_id)
        # STUDENT+ASSIGNMENT+TIME+RANDOM; names may hold a plus, and so may the time: +0200
        parts = re.compile(rf"(.+)\+{assignment}\+([^+]+(?:\+\d{{4}})?)(\+[\w=-]{{1,64}})?", re.DOTALL)
        for writer, entry in self._entries():
            if self.only not in ("", entry.name):
                continue
            match = parts.fullmatch(entry.name)
            if match is None or not fnmatch.fnmatchcase(match[1], course.student_id or "*"):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except (FileNotFoundError, PermissionError):
                continue
            claimed = time_in_name(match[2])
            problem = "" if claimed else "the time in its name is invalid"
            if not is_student(match[1]):
                problem = "no learner has such a name"
            if writer is not None and writer != match[1]:
                problem = f"it says that it is {match[1]!r}'s, but is in the folder of {writer!r}"
            problem = problem or self._foreign(match[1], status)
            if problem or claimed is None:
                self._refuse(entry.name, status, problem)
            else:
                yield Arrival(match[1], claimed, Path(entry.path), status)

    def _entries(self) -> Iterator[tuple[str | None, os.DirEntry[str]]]:
        """Yield the entries of `inbound/`, each with the learner whose folder holds it; None without `own_inbound`."""
        with os.scandir(self.inbound_path) as entries:
            for entry in entries:
                if not self.own_inbound:
                    yield None, entry
                elif self._collects_from(entry):
                    try:
                        with os.scandir(entry) as own:
                            yield from ((entry.name, each) for each in islice(own, _LISTED))
                    except OSError as problem:  # the learner can close it
                        self.log.error("Not collected: the folder of %s: %s", entry.name, problem.strerror)

    def _collects_from(self, entry: os.DirEntry[str]) -> bool:
        """Return whether this entry of `inbound/` is the own folder of a learner whose submissions are wanted."""
        wanted = fnmatch.fnmatchcase(entry.name, self.coursedir.student_id or "*")
        return wanted and is_student(entry.name) and entry.is_dir(follow_symlinks=False)

    def _foreign(self, student: str, status: os.stat_result) -> str:
        """Return why a folder or file is not the learner's own; empty when it is, or when owners are not checked."""
        if not self.checks_owner:
            return ""
        try:
            uid = pwd.getpwnam(student).pw_uid
        except KeyError:
            return f"there is no user {student!r}, so nobody can have handed it in under that name"
        return "" if status.st_uid == uid else f"it says that it is {student!r}'s, but belongs to {_owner(status)!r}"

    def _choose(self, arrivals: list[Arrival], duedate: datetime | None) -> Arrival:
        """Return the newest submission, or with a due date the newest in time, if there is one."""
        if duedate:
            for arrival in self._in_time(arrivals, duedate):
                try:
                    with opened(arrival.path) as folder:
                        if self._handed_in(arrival, folder)[0] <= duedate:
                            return arrival
                except (EntryRefused, IntakeFailed) as problem:
                    self._refuse(arrival.path.name, arrival.status, f"{problem}")
        return max(arrivals, key=self._order)

    def _candidates(self, arrivals: list[Arrival], duedate: datetime | None) -> list[Arrival]:
        """Return the newest submissions, and the newest of those that may be in time."""
        newest = sorted(arrivals, key=self._order, reverse=True)[:_TRIES]
        in_time = self._in_time(arrivals, duedate) if duedate else []
        return [*newest, *(arrival for arrival in in_time if arrival not in newest)]

    def _in_time(self, arrivals: list[Arrival], duedate: datetime) -> list[Arrival]:
        """Return the submissions that may be in time, the newest first: their files may have been changed later."""
        limit = duedate + timedelta(seconds=self.tolerance)
        found = [arrival for arrival in arrivals if self._order(arrival)[0] <= limit]
        return sorted(found, key=self._order, reverse=True)[:_TRIES]

    def _order(self, arrival: Arrival) -> tuple[datetime, datetime]:
        """Return the sort key of submissions: the time of receipt, unless the exchange is a copy."""
        return (arrival.claimed if self.believe_names else arrival.received), arrival.claimed

    def _handed_in(self, arrival: Arrival, folder: int) -> tuple[datetime, list[FolderEntry], list[str]]:
        """Return the submission time in UTC as far as the kernel confirms it, the files, and what was left out.

        folder: an open one. Its owner is checked again: in the exchange anybody can replace a folder by its name.
        """
        status = os.fstat(folder)
        if problem := self._foreign(arrival.student, status):
            raise EntryRefused(problem)
        entries, notes = walk(folder, self._limits)
        for entry in entries:
            if problem := self._foreign(arrival.student, entry.status):
                raise EntryRefused(f"`{shown(entry.path)}` in it: {problem}")
        changed_at = max(each.st_ctime for each in (status, *(entry.status for entry in entries)))
        changed = in_utc(changed_at)
        if self.believe_names or timedelta(0) <= changed - arrival.claimed <= timedelta(seconds=self.tolerance):
            return arrival.claimed, entries, notes
        if timedelta(0) < arrival.claimed - changed <= timedelta(seconds=self.tolerance):
            return changed, entries, notes  # a clock that is somewhat fast
        discrepancy = (
            f"it says {arrival.claimed:%Y-%m-%d %H:%M} UTC, but was last changed on {changed:%Y-%m-%d %H:%M} UTC"
        )
        self.log.warning("%s: %s, which counts (ExchangeCollect.believe_names)", shown(arrival.path.name), discrepancy)
        return changed, entries, [*notes, f"The time of the submission: {discrepancy}, which counts."]

    @property
    def _limits(self) -> Limits:
        return Limits(total_bytes=1000 * self.coursedir.max_dir_size)

    def _collect(self, arrival: Arrival) -> None:
        course = self.coursedir
        submitted = Path(course.format_path(course.submitted_directory, arrival.student, course.assignment_id))
        collected = Path(course.format_path(COLLECTED, arrival.student, course.assignment_id))
        record = current_record(collected)
        received, _ = self._order(arrival)
        who = f"{arrival.student} {course.assignment_id}"
        with opened(arrival.path) as folder:
            handed_in, entries, notes = self._handed_in(arrival, folder)
            is_there = os.path.lexists(submitted)
            if is_there:
                newer = self.update and _is_newer(record, submitted, arrival, received, handed_in)
                other = record is None or (record.source, record.handed_in) != (printable(arrival.path.name), handed_in)
                if not newer and not (self.before_duedate and other):
                    hint = "No newer submission to collect" if self.update else "Submission exists, use --update"
                    self.log.info("%s: %s", hint, who)
                    return
                self.log.info("Updating submission: %s", who)
            else:
                self.log.info("Collecting submission: %s", who)
            making = submitted.with_name(f".{submitted.name}")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            notes += copy_plain_files(folder, entries, making, course)
        with opened(making) as folder:
            digest = content_hash(folder, walk(folder, self._limits)[0], self._limits)
        if record and (record.source, record.content_hash) == (printable(arrival.path.name), digest) and is_there:
            # its files have other times, as after a restore of the exchange
            self.log.info("Unchanged since it was collected: %s", who)
            shutil.rmtree(making)
            return
        (making / STAMPS[0]).write_text(handed_in.strftime(FORMAT))
        new = Record(
            *(arrival.student, course.assignment_id, handed_in, arrival.claimed, received, _owner(arrival.status)),
            *(self.checks_owner, digest, printable(arrival.path.name), tuple(notes)),
        )
        put_by(submitted, collected, record)
        write_json(collected / "current.json", new.to_json())
        making.rename(submitted)

    def _refuse(self, name: str, status: os.stat_result, reason: str) -> None:
        if name in self.refused:
            return
        self._refusals += 1
        if self._refusals <= _SHOWN:
            self.log.error("Refused: %s: %s", shown(name), reason)
        if self._refusals <= _KEPT:
            self.refused[name] = Refusal(name.encode("utf-8", "replace").decode(), _owner(status), reason)

    def _write_refused(self) -> None:
        path = Path(self.coursedir.root, COLLECTED, ".refused", f"{self.coursedir.assignment_id}.json")
        if self.refused or path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, [vars(refusal) for refusal in self.refused.values()])
        if self.refused:
            self.log.error("%s submissions were refused; the reasons are in %s", f"{self._refusals:,}", path)


def _is_newer(
    record: Record | None, submitted: Path, arrival: Arrival, received: datetime, handed_in: datetime
) -> bool:
    """Return whether a submission in the exchange is newer than the one in `submitted`, which `record` describes."""
    if record is None:  # copied by hand: its stamp counts, unless that is later than the copying
        time = stamp_in(submitted).time
        return time is None or received > min(time, in_utc(os.lstat(submitted).st_ctime))
    if record.source == printable(arrival.path.name):  # its files may have been changed since
        return handed_in > record.handed_in
    return received > record.received


def is_student(name: str) -> bool:
    """Return whether this can be a learner's name and thus a folder name, wherever nbgrader makes one."""
    return not is_odd(name) and not name.startswith(".") and not set(name) & set("/\\*?[]{}") and name == name.strip()


def _owner(status: os.stat_result) -> str:
    try:
        return pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return f"uid {status.st_uid}"
