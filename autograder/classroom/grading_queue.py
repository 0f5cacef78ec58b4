"""The queue of submissions that are graded as they come in: which is next, what has been done, who has to wait.

The submissions in the exchange are the queue; beside them is only a record of each that is done. So nothing is lost
when the service is killed: a submission without a record is judged, again if need be, with the same result.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from autograder.classroom.cached_reads import CachedReads
from autograder.classroom.challenges.entries import assignment_of
from autograder.classroom.folders import Folders
from autograder.classroom.overview.judged import JudgedExercise
from autograder.classroom.site import Site
from autograder.intake.keeping import write_json
from autograder.intake.stamps import told_time
from labkit.replaced_files import replace_text

_LEARNERS_FOLDERS = 200
"""Maximum submissions of one learner that are looked at: a learner may make any number of folders."""


@dataclass(frozen=True)
class Submission:
    """A folder in the exchange; learner by the folder that it is in, the rest as its name claims."""

    learner: str
    assignment: str
    claimed: datetime
    path: Path
    changed: float
    """Time of the folder's last change, in seconds since 1970, by this machine's clock."""


@dataclass(frozen=True)
class Done:
    """Record of a submission that is graded, or that a later one has replaced."""

    learner: str
    assignment: str
    folder: str
    finished: str
    """UTC, ISO 8601."""
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
    """Of the one that waits, from 1; 0: none waits, or not today."""
    waiting: int
    """Submissions of all learners that wait."""
    is_unjudged: bool
    """Whether the newest submission is not judged yet."""
    tries_left: int
    """Today."""
    done: tuple[Done, ...]
    """Newest first."""


class GradingQueue:
    """inbound: folder of learners' folders. records: folder of the records, written by one process."""

    def __init__(self, inbound: Path, records: Path, assignments: Sequence[str], tries_per_day: int) -> None:
        self._inbound, self._records = inbound, records
        self._assignments, self._tries = tuple(assignments), tries_per_day
        self._behind: list[str] = []
        self._done = CachedReads(_read_records)

    @classmethod
    def of(cls, folders: Folders, site: Site) -> GradingQueue:
        """Return the queue of a classroom: submissions that are graded as they come in, and entries of challenges."""
        assignments = [*site.grading.on_submit, *map(assignment_of, site.challenges.open)]
        return cls(folders.in_exchange("inbound"), folders.graded, assignments, site.grading.tries_per_day)

    def waiting(self, today: str) -> list[Submission]:
        """Return what is to be judged, in order: what is being judged, then one submission of each learner in turn.

        today: the day in UTC, ISO 8601. Of several submissions of a learner for one assignment only the newest is
        judged. Learners without a try left today are not in it.
        """
        done = self.done()
        used = self._used(done, today)
        ready = [one for one in self._newest() if used[one.learner, one.assignment] < self._tries]
        last = {one.learner: one.finished for one in done}  # oldest first, so the latest stays
        served = sorted(last, key=lambda name: last[name])
        ordered = in_turn(ready, [*(name for name in served if name not in self._behind), *self._behind])
        now = self._now.read_text() if self._now.exists() else ""
        return sorted(ordered, key=lambda one: one.path.name != now)  # a stable sort

    def status(self, learner: str, today: str) -> list[Status]:
        """Return how it is with a learner's submissions, one for each assignment."""
        waiting, done = self.waiting(today), self.done()
        used = self._used(done, today)
        newest = {(one.learner, one.assignment) for one in self._newest()}
        places = {(one.learner, one.assignment): place for place, one in enumerate(waiting, 1)}
        return [
            Status(
                assignment,
                places.get((learner, assignment), 0),
                len(waiting),
                (learner, assignment) in newest,
                max(self._tries - used[learner, assignment], 0),
                tuple(one for one in reversed(done) if (one.learner, one.assignment) == (learner, assignment)),
            )
            for assignment in self._assignments
        ]

    def done(self) -> list[Done]:
        """Return all records, oldest first."""
        found = [one for folder in self._records.glob("*/") for one in self._done(folder)]
        return sorted(found, key=lambda one: one.finished)

    def newest(self) -> dict[tuple[str, str], Submission]:
        """Return the newest submission by learner and assignment, done or not."""
        newest: dict[tuple[str, str], Submission] = {}
        for one in self._arrived():
            key = (one.learner, one.assignment)
            if key not in newest or one.claimed > newest[key].claimed:
                newest[key] = one
        return newest

    def is_done(self, submission: Submission) -> bool:
        """Return whether there is a record of a submission."""
        return self._record(submission).exists()

    def begin(self, submission: Submission) -> None:
        """Record that a submission is being judged."""
        self._records.mkdir(parents=True, exist_ok=True)
        replace_text(self._now, submission.path.name)

    def finish(self, submission: Submission, record: Done) -> None:
        """Record that a submission is done. The record appears whole, or not at all."""
        path = self._record(submission)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(record))
        self._behind = [name for name in self._behind if name != submission.learner]

    def put_behind(self, learner: str) -> None:
        """Let all other learners take their turn before this one."""
        self._behind = [*(name for name in self._behind if name != learner), learner]

    @property
    def _now(self) -> Path:
        return self._records / "now"

    def _used(self, done: Iterable[Done], today: str) -> Counter[tuple[str, str]]:
        """Count the tries of a day by learner and assignment."""
        return Counter((one.learner, one.assignment) for one in done if one.judged and one.day == today)

    def _newest(self) -> list[Submission]:
        """Return the newest submission of each learner for each assignment, unless it is done."""
        return [one for one in self.newest().values() if not self.is_done(one)]

    def _record(self, submission: Submission) -> Path:
        return self._records / submission.learner / f"{submission.path.name}.json"

    def _arrived(self) -> Iterator[Submission]:
        for own in sorted(self._inbound.iterdir()):
            if own.is_symlink() or not own.is_dir():
                continue
            with os.scandir(own) as entries:
                for count, entry in enumerate(entries):
                    if count == _LEARNERS_FOLDERS:
                        break
                    learner, *parts = entry.name.split("+")
                    if learner != own.name or len(parts) < 2 or parts[0] not in self._assignments:
                        continue
                    claimed = told_time(parts[1])
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    # nbgrader writes the secret last
                    whole = os.path.lexists(os.path.join(entry.path, "submission_secret.txt"))
                    if claimed is not None and stat.S_ISDIR(status.st_mode) and whole:
                        yield Submission(learner, parts[0], claimed, Path(entry.path), status.st_ctime)


def _read_records(folder: Path) -> list[Done]:
    """Return the records of one learner; write_json begins with a file whose name starts with a dot."""
    return [Done.from_json(json.loads(path.read_text())) for path in folder.glob("[!.]*.json")]


def in_turn(ready: Iterable[Submission], served: Sequence[str]) -> list[Submission]:
    """Order submissions: one of each learner before the second of any, those served longest ago first.

    served: learners in the order in which they were served last; one who is not in it comes first. What came first
    decides between equals.
    """
    turns = {name: place for place, name in enumerate(served)}
    rounds: list[tuple[int, int, float, str, Submission]] = []
    before: Counter[str] = Counter()
    for one in sorted(ready, key=lambda one: (one.changed, one.path.name)):
        rounds.append((before[one.learner], turns.get(one.learner, -1), one.changed, one.path.name, one))
        before[one.learner] += 1
    return [entry[-1] for entry in sorted(rounds, key=lambda entry: entry[:-1])]
