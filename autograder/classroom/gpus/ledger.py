"""The ledger: which user had how many GPUs from when to when, as the scheduler says.

Nothing is added up in the file. A look at the jobs writes for each job its interval so far, so looking twice, or again
after a restart, counts nothing twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autograder.classroom.gpus.jobs import Job

DAY_SECONDS = 86_400
_SCHEMA = """
CREATE TABLE IF NOT EXISTS uses (
    job TEXT, start INTEGER, user TEXT NOT NULL, gpus INTEGER NOT NULL, until INTEGER NOT NULL, ended INTEGER NOT NULL,
    PRIMARY KEY (job, start)
);
CREATE INDEX IF NOT EXISTS uses_until ON uses (until);
CREATE TABLE IF NOT EXISTS notices (
    job TEXT, user TEXT, text TEXT, time INTEGER NOT NULL, PRIMARY KEY (job, user, text)
);
"""


@dataclass(frozen=True)
class Notice:
    """Why a job was ended or shortened."""

    job: str
    text: str


def day_of(moment: float) -> int:
    """Return the start of the day (UTC) of a moment, Unix seconds."""
    return int(moment // DAY_SECONDS) * DAY_SECONDS


def day_name(moment: float) -> str:
    """Return the day (UTC) of a moment, ISO 8601."""
    return datetime.fromtimestamp(moment, UTC).date().isoformat()


class Ledger:
    """The ledger's file, readable only by the user who runs the hub."""

    def __init__(self, path: Path) -> None:
        path.touch(0o600)
        path.chmod(0o600)
        self._path = path
        with closing(self._open()) as database:
            database.executescript(_SCHEMA)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def record(self, jobs: Iterable[Job], gpus: Mapping[tuple[str, int], int], now: float) -> None:
        """Write the intervals of all jobs that have or had nodes.

        gpus: GPUs of these jobs, by job and start; a larger number than before holds for the whole interval. A job that
        the scheduler has forgotten since the last look ends where it was seen last. No job ends later than `now`.
        """
        with closing(self._open()) as database, database:
            seen = set()
            for job in jobs:
                if not job.has_run:
                    continue
                count, runs = gpus[job.id, job.start], job.holds and not job.is_ending
                end = min(job.end, int(now))
                _write(database, job, job.start, int(now) if runs else end, count)
                if runs:
                    seen.add((job.id, job.start))
                else:
                    database.execute(
                        "UPDATE uses SET until = ?, ended = 1 WHERE job = ? AND start = ? AND NOT ended",
                        (end, job.id, job.start),
                    )
                if job.is_ending:
                    # the scheduler's end is when it began to end; from then until its nodes are free is a second use
                    _write(database, job, job.end, int(now), count)
                    seen.add((job.id, job.end))
            for key in database.execute("SELECT job, start FROM uses WHERE NOT ended").fetchall():
                if key not in seen:
                    database.execute("UPDATE uses SET ended = 1 WHERE job = ? AND start = ?", key)

    def used(self, now: float) -> dict[str, int]:
        """Return the GPU-seconds of each user on the day (UTC) of `now`."""
        first = day_of(now)
        last = first + DAY_SECONDS
        totals: dict[str, int] = {}
        with closing(self._open()) as database:
            rows = database.execute("SELECT user, gpus, start, until FROM uses WHERE until > ?", (first,))
            for user, gpus, start, until in rows:
                seconds = max(0, min(until, last) - max(start, first))
                totals[user] = totals.get(user, 0) + gpus * seconds
        return totals

    def notify(self, job: str, user: str, text: str, now: float) -> None:
        """Record why a job was ended or shortened; the same text once."""
        with closing(self._open()) as database, database:
            database.execute("INSERT OR IGNORE INTO notices VALUES (?, ?, ?, ?)", (job, user, text, int(now)))

    def notices(self, user: str, now: float) -> list[Notice]:
        """Return the notices of a user since yesterday, the newest first."""
        with closing(self._open()) as database:
            rows = database.execute(
                "SELECT job, text FROM notices WHERE user = ? AND time >= ? ORDER BY time DESC, rowid DESC",
                (user, now - DAY_SECONDS),
            )
            return [Notice(*row) for row in rows]


def _write(database: sqlite3.Connection, job: Job, start: int, until: int, gpus: int) -> None:
    """Write an interval of a job, or lengthen it."""
    database.execute(
        "INSERT INTO uses VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT (job, start) DO UPDATE "
        "SET until = max(until, excluded.until), gpus = max(gpus, excluded.gpus)",
        (job.id, start, job.user, gpus, max(until, start)),
    )
