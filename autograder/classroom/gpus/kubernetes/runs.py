"""The owner of each run, by its name; and what the next hub must know of runs that this one has seen."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    name TEXT PRIMARY KEY, user TEXT NOT NULL, time INTEGER NOT NULL, gone INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_left ON runs (user) WHERE NOT gone;
CREATE INDEX IF NOT EXISTS runs_begun ON runs (user, time);
CREATE TABLE IF NOT EXISTS runs_with_jobs (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS starts (name TEXT PRIMARY KEY, start INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS pods_version (version TEXT NOT NULL);
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

    def keep(self, starts: Mapping[str, int], version: str) -> None:
        """Keep what a look has seen: the starts of all runs that there are, and the version of the pods."""
        with closing(self._open()) as database, database:
            database.execute("DELETE FROM starts")
            database.executemany("INSERT INTO starts VALUES (?, ?)", starts.items())
            database.execute("DELETE FROM pods_version")
            database.execute("INSERT INTO pods_version VALUES (?)", (version,))

    def starts(self) -> dict[str, int]:
        """Return the starts of the runs of the last look, Unix seconds; 0: not started."""
        with closing(self._open()) as database:
            return dict(database.execute("SELECT name, start FROM starts").fetchall())

    def pods_version(self) -> str:
        """Return the version of the pods at the last look; empty if there was none."""
        with closing(self._open()) as database:
            row = database.execute("SELECT version FROM pods_version").fetchone()
            return str(row[0]) if row else ""
