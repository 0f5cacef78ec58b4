"""Waiting for a gradebook that another program has locked, such as a formgrader that saves or a database browser.

SQLite by itself gives up after 5 s, and nbgrader ends with a traceback. Here each statement waits for up to
`LIMIT_SECONDS`, after a line that says what for; then `GradebookLocked` ends the command.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
from nbgrader import api
from sqlalchemy import Engine, create_engine, make_url

LIMIT_SECONDS = 120.0
"""Time for which a command waits."""
SERVER_SECONDS = 5.0
"""Time for which a server waits, which answers nobody else meanwhile: SQLite's own."""
LOCKED = 2
"""Exit status of a command that has waited in vain."""
_ATTEMPT_SECONDS = 0.25
_PAUSE_SECONDS = 0.05


class GradebookLocked(BaseException):
    """Another program has kept the gradebook locked; the message names it, and what to do.

    No Exception: nbgrader catches those of each submission, and would wait as long for the next one.
    """


@dataclass(frozen=True)
class _Patience:
    clock: Callable[[], float]
    say: Callable[[str], None]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_patience: ContextVar[_Patience | None] = ContextVar("_patience", default=None)


@contextmanager
def patience(clock: Callable[[], float], say: Callable[[str], None] = _say) -> Iterator[None]:
    """Within this context, measure the wait by `clock`, in seconds, and announce it by `say`."""
    token = _patience.set(_Patience(clock, say))
    try:
        yield
    finally:
        _patience.reset(token)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        _patiently(self.connection, partial(super().execute, sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        _patiently(self.connection, partial(super().executemany, sql, parameters))
        return self


class _Connection(sqlite3.Connection):
    def __init__(self, database: str, *arguments: Any, **options: Any) -> None:
        super().__init__(database, *arguments, **options)
        self.path = Path(database)

    def cursor(self, factory: type[sqlite3.Cursor] | None = None) -> sqlite3.Cursor:  # type: ignore[override]
        return super().cursor(factory or _Cursor)

    def commit(self) -> None:
        _patiently(self, super().commit)


def _patiently(connection: sqlite3.Connection, attempt: Callable[[], object]) -> None:
    """Call `attempt` until the database is not locked any more. Raises `GradebookLocked`."""
    assert isinstance(connection, _Connection)
    patience, began = _patience.get() or _Patience(time.monotonic, _say), None
    while True:
        try:
            attempt()
            return
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # the rest is a detail
                raise
            if began is None:
                began = patience.clock()
                if not _serves():
                    patience.say(_waiting_for(connection.path))
            waited = patience.clock() - began
            if _serves() and waited > SERVER_SECONDS:
                raise
        if waited > LIMIT_SECONDS:
            raise GradebookLocked(_locked(connection.path))
        time.sleep(_PAUSE_SECONDS)


def _waiting_for(path: Path) -> str:
    return f"waiting up to {LIMIT_SECONDS:.0f} s for the gradebook {path}, locked by {_holder(path)}"


def _locked(path: Path) -> str:
    return (
        f"the gradebook {path} has been locked for {LIMIT_SECONDS:.0f} s by {_holder(path)}. Let that end (another "
        "nbgrader command, a formgrader that saves, a database browser), then run the same command again: nothing is "
        "lost, and what is judged is not judged again"
    )


def _serves() -> bool:
    """Return whether this is a server's thread that answers requests, such as the formgrader's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _holder(path: Path) -> str:
    """Return which process holds a lock on a file, as far as the kernel shows it."""
    try:
        status = os.stat(path)
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pids = {int(lock[-4]) for lock in locks if lock[-3] == file and "->" not in lock} - {os.getpid()}
        return ", ".join(f"process {pid} ({psutil.Process(pid).name()})" for pid in sorted(pids)) or "another program"
    except (OSError, ValueError, IndexError, psutil.Error):
        return "another program"


def patient_engine(url: str, **options: Any) -> Engine:
    """Replaces nbgrader's `create_engine`."""
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, **options)
    return create_engine(url, connect_args={"factory": _Connection, "timeout": _ATTEMPT_SECONDS}, **options)


def install() -> None:
    """Make nbgrader, in this process, wait for a locked gradebook."""
    api.create_engine = patient_engine
