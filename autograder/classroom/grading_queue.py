"""The queue of submissions that are graded as they come in: which is next, what has been done, who has to wait.

The submissions in the exchange are the queue; beside them is only a record of each that is done. So nothing is lost
when the service is killed: a submission without a record is judged, again if need be, with the same result.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from autograder.classroom.cached_reads import CachedReads
from autograder.classroom.challenges.entries import assignment_of, withdrawal_of
from autograder.classroom.folders import Folders
from autograder.classroom.overview.judged import JudgedExercise
from autograder.classroom.site import Site
from autograder.intake.folder import is_odd
from autograder.intake.keeping import write_json
from autograder.intake.stamps import received_at, time_in_name

_LISTED = 10_000
"""Maximum names in one learner's folder that are read: a learner may make any number of folders."""
_REFUSED_PER_DAY = 20
"""Refused submissions of one learner for one assignment after which the next one waits until tomorrow.

They use up no try, but each is copied, and leaves a record outside the learner's own space.
"""
_INTERRUPTED = 3
"""Judgements of one submission that the service did not survive, after which all others go first."""


@dataclass(frozen=True)
class Submission:
    """A folder in the exchange. The folder around it determines the learner; its own name claims the rest."""

    learner: str
    assignment: str
    path: Path
    received: float
    """Time of its receipt, or of a later change: in seconds since 1970, by the clock of the exchange's file system."""


@dataclass(frozen=True)
class Done:
    """Record of a submission that is graded, or that a later one has replaced."""

    learner: str
    assignment: str
    folder: str
    finished: str
    """Time of grading: UTC, ISO 8601."""
    judged: bool
    score: float = 0.0
    max_score: float = 0.0
    problem: str = ""
    exercises: tuple[JudgedExercise, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Done:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**data, "exercises": tuple(map(JudgedExercise.from_json, data.get("exercises", ())))})

    @property
    def day(self) -> str:
        return self.finished[:10]


@dataclass(frozen=True)
class Status:
    """A learner's submissions for one assignment."""

    assignment: str
    place: int
    """Place in the queue of the waiting submission, from 1; 0: none waits, or not today."""
    waiting: int
    """Number of waiting submissions of all learners."""
    is_unjudged: bool
    """Whether the newest submission is not judged yet."""
    tries_left: int
    """Tries left today."""
    done: tuple[Done, ...]
    """Records of finished submissions, newest first."""


class GradingQueue:
    """Submissions that wait to be graded, and records of those that are done.

    inbound: folder of learners' folders. records: folder of the records, written by one process.

    shared: `inbound` is one folder of all learners, who are users of this system: a submission's learner is its owner.
    """

    def __init__(
        self, inbound: Path, records: Path, assignments: Sequence[str], tries_per_day: int, shared: bool = False
    ) -> None:
        self._inbound, self._records, self._shared = inbound, records, shared
        self._assignments, self._tries = tuple(assignments), tries_per_day
        self._behind: list[str] = []
        self._done = CachedReads(_read_records)

    @classmethod
    def of(cls, folders: Folders, site: Site) -> GradingQueue:
        """Return the queue of a classroom: submissions that are graded as they come in, and entries of challenges."""
        assignments = [*site.grading.on_submit, *map(assignment_of, site.challenges.open)]
        assignments += map(withdrawal_of, (*site.challenges.open, *site.challenges.traces))
        inbound, tries = folders.in_exchange("inbound"), site.grading.tries_per_day
        return cls(inbound, folders.graded, assignments, tries, folders.shares_exchange)

    def of_all(self, assignments: Sequence[str]) -> GradingQueue:
        """Return a queue of the same exchange and records, for other assignments."""
        return GradingQueue(self._inbound, self._records, assignments, self._tries, self._shared)

    def waiting(self, today: str) -> list[Submission]:
        """Return the submissions to judge, in order: those being judged, then one of each learner in turn.

        today: the day in UTC, ISO 8601. Of several submissions of a learner for one assignment only the newest is
        judged. Learners without a try left today are left out. A submission on which the service has ended several
        times comes last.
        """
        return self._in_order(self._newest(), self.done(), today)

    def _in_order(self, unjudged: Iterable[Submission], done: Sequence[Done], today: str) -> list[Submission]:
        used, refused = self._used(done, today), self._used(done, today, judged=False)
        ready = [
            submission
            for submission in unjudged
            if used[submission.learner, submission.assignment] < self._tries
            and refused[submission.learner, submission.assignment] < _REFUSED_PER_DAY
        ]
        last = {record.learner: record.finished for record in done}  # oldest first, so the latest stays
        served = sorted(last, key=lambda name: last[name])
        ordered = in_turn(ready, [*(name for name in served if name not in self._behind), *self._behind])
        begun = self._begun()

        def late(submission: Submission) -> tuple[bool, bool]:
            times = begun.get(submission.path.name, 0)
            return times >= _INTERRUPTED, not times

        return sorted(ordered, key=late)  # a stable sort

    def status(self, learner: str, today: str) -> list[Status]:
        """Return the status of a learner's submissions, one for each assignment."""
        unjudged, done = self._newest(), self.done()
        waiting, used = self._in_order(unjudged, done, today), self._used(done, today)
        newest = {(submission.learner, submission.assignment) for submission in unjudged}
        places = {(submission.learner, submission.assignment): place for place, submission in enumerate(waiting, 1)}
        own: dict[str, list[Done]] = defaultdict(list)
        for record in reversed(done):
            if record.learner == learner:
                own[record.assignment].append(record)
        return [
            Status(
                assignment,
                places.get((learner, assignment), 0),
                len(waiting),
                (learner, assignment) in newest,
                max(self._tries - used[learner, assignment], 0),
                tuple(own[assignment]),
            )
            for assignment in self._assignments
        ]

    def done(self) -> list[Done]:
        """Return all records, oldest first."""
        records = [record for folder in self._records.glob("*/") for record in self._done(folder)]
        return sorted(records, key=lambda record: record.finished)

    def newest(self) -> dict[tuple[str, str], Submission]:
        """Return the newest submission by learner and assignment, done or not."""
        return {
            (submission.learner, submission.assignment): submission
            for claims in self._claims()
            for submission in self._newest_of(*claims)
        }

    def is_done(self, submission: Submission) -> bool:
        """Return whether there is a record of a submission."""
        return self._record(submission).exists()

    def begin(self, submission: Submission) -> None:
        """Record that a submission is being judged."""
        self._records.mkdir(parents=True, exist_ok=True)
        name, begun = submission.path.name, self._begun()
        write_json(self._records / "begun.json", {**begun, name: begun.get(name, 0) + 1})

    def finish(self, submission: Submission, record: Done) -> None:
        """Record that a submission is done. The record appears whole, or not at all."""
        path = self._record(submission)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(record))
        self._forget_begun(submission)
        self._behind = [name for name in self._behind if name != submission.learner]

    def put_behind(self, submission: Submission) -> None:
        """Record that a submission could not be judged just now. All other learners take their turn before its own."""
        self._forget_begun(submission)
        self._behind = [*(name for name in self._behind if name != submission.learner), submission.learner]

    def _begun(self) -> dict[str, int]:
        """Return how often a judgement of each submission has begun, of those that have neither ended nor failed."""
        path = self._records / "begun.json"
        counts: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        return counts

    def _forget_begun(self, submission: Submission) -> None:
        begun = self._begun()
        if begun.pop(submission.path.name, None) is not None:
            write_json(self._records / "begun.json", begun)

    def _used(self, done: Iterable[Done], today: str, judged: bool = True) -> Counter[tuple[str, str]]:
        """Count the tries of a day by learner and assignment, or the refused submissions."""
        return Counter(
            (record.learner, record.assignment) for record in done if record.judged == judged and record.day == today
        )

    def _newest(self) -> list[Submission]:
        """Return the newest submission of each learner for each assignment, unless it is done."""
        return [submission for submission in self.newest().values() if not self.is_done(submission)]

    def _record(self, submission: Submission) -> Path:
        return self._records / submission.learner / f"{submission.path.name}.json"

    def _claims(self) -> Iterator[tuple[str, Path, list[str]]]:
        """Yield each learner with a folder and the names of the learner's entries in it; no names if it is closed."""
        if self._shared:
            yield from self._by_owner()
            return
        for own in sorted(path for path in self._inbound.iterdir() if not path.is_symlink() and path.is_dir()):
            names: list[str] = []
            with contextlib.suppress(OSError), os.scandir(own) as entries:
                names = [entry.name for entry in islice(entries, _LISTED)]
            yield own.name, own, names

    def _by_owner(self) -> Iterator[tuple[str, Path, list[str]]]:
        owned: dict[int, list[str]] = defaultdict(list)
        with os.scandir(self._inbound) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # it is gone
                    names = owned[entry.stat(follow_symlinks=False).st_uid]
                    if len(names) < _LISTED:
                        names.append(entry.name)
        for uid, names in owned.items():
            with contextlib.suppress(KeyError):  # no user of this system
                yield pwd.getpwuid(uid).pw_name, self._inbound, names

    def _newest_of(self, learner: str, folder: Path, names: Iterable[str]) -> Iterator[Submission]:
        """Yield a learner's newest whole submission for each assignment."""
        newest: dict[str, tuple[float, str, Submission]] = {}
        for name in names:
            author, *parts = name.split("+")
            # nbgrader writes no odd name, and no file of ours could have one
            if author != learner or len(parts) < 2 or parts[0] not in self._assignments or is_odd(name):
                continue
            if time_in_name(parts[1]) and (whole := _whole(learner, parts[0], folder / name)):
                newest[parts[0]] = max(newest.get(parts[0], whole), whole, key=lambda each: each[:2])
        yield from (submission for *_, submission in newest.values())


def _whole(learner: str, assignment: str, path: Path) -> tuple[float, str, Submission] | None:
    """Return the submission in a folder after its sort key, if it is complete: nbgrader writes the secret last.

    Of two that arrive at once, the name decides.
    """
    try:
        status = path.lstat()
        os.lstat(path / "submission_secret.txt")
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None
    return received_at(path, status), path.name, Submission(learner, assignment, path, status.st_ctime)


def _read_records(folder: Path) -> list[Done]:
    """Return the records of one learner; write_json begins with a file whose name starts with a dot."""
    return [Done.from_json(json.loads(path.read_text())) for path in folder.glob("[!.]*.json")]


def in_turn(ready: Iterable[Submission], served: Sequence[str]) -> list[Submission]:
    """Order submissions: one of each learner before the second of any, those served longest ago first.

    served: learners in the order in which they were served last; all others come first. Between equals, the
    earlier submission comes first.
    """
    turns = {name: place for place, name in enumerate(served)}
    rounds: list[tuple[int, int, float, str, Submission]] = []
    before: Counter[str] = Counter()
    for submission in sorted(ready, key=lambda submission: (submission.received, submission.path.name)):
        rounds.append(
            (
                before[submission.learner],
                turns.get(submission.learner, -1),
                submission.received,
                submission.path.name,
                submission,
            )
        )
        before[submission.learner] += 1
    return [entry[-1] for entry in sorted(rounds, key=lambda entry: entry[:-1])]
