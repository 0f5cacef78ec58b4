"""The owner of each run, by its name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    name TEXT PRIMARY KEY, user TEXT NOT NULL, time INTEGER NOT NULL, gone INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_left ON runs (user) WHERE NOT gone;
CREATE INDEX IF NOT EXISTS runs_begun ON runs (user, time);
CREATE TABLE IF NOT EXISTS runs_with_jobs (name TEXT PRIMARY KEY);
"""


class Runs:
    """A table in the ledger's file. A name is used once, and stays with its first user."""

    def __init__(self, path: Path) -> None:
        """path: file of the ledger, which exists."""
        self._path = path
        with closing(self._open()) as database:
            database.executescript(_SCHEMA)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def begin(self, name: str, user: str, now: float) -> bool:
        """Record that a new run is this user's. Returns False if anybody has used the name before."""
        with closing(self._open()) as database, database:
            done = database.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, 0)", (name, user, int(now)))
            return done.rowcount == 1

    def begun(self, user: str, since: float) -> int:
        """Return how many runs of a user's have begun since then, Unix seconds; also those that are gone."""
        with closing(self._open()) as database:
            rows = database.execute("SELECT COUNT(*) FROM runs WHERE user = ? AND time >= ?", (user, int(since)))
            return int(rows.fetchone()[0])

    def begin_job(self, name: str) -> bool:
        """Record that a run has a Job. Returns False if it has had one: a second would be taken for the first."""
        with closing(self._open()) as database, database:
            done = database.execute("INSERT OR IGNORE INTO runs_with_jobs VALUES (?)", (name,))
            return done.rowcount == 1

    def forget(self, name: str) -> None:
        """Take back `begin`: the cluster has refused the run."""
        with closing(self._open()) as database, database:
            database.execute("DELETE FROM runs WHERE name = ?", (name,))

    def end(self, name: str) -> None:
        """Record that a run's objects were deleted."""
        with closing(self._open()) as database, database:
            database.execute("UPDATE runs SET gone = 1 WHERE name = ?", (name,))

    def is_of(self, user: str, name: str) -> bool:
        """Return whether a run is this user's, also one that is gone."""
        with closing(self._open()) as database:
            return bool(database.execute("SELECT 1 FROM runs WHERE name = ? AND user = ?", (name, user)).fetchall())

    def left(self, user: str) -> dict[str, int]:
        """Return the runs of a user's that are not gone, and when they began, Unix seconds."""
        with closing(self._open()) as database:
            return dict(database.execute("SELECT name, time FROM runs WHERE user = ? AND NOT gone", (user,)).fetchall())
