"""Verdicts stored in the course folder, so that nothing is judged twice: `verdicts/STUDENT/ASSIGNMENT/NOTEBOOK.json`.

A verdict is stored with its key (see `key.py`) and is valid only while the key matches. If the machine and not the
submission failed, there is no verdict and `NOTEBOOK.error.json` gives the reason. Files are written atomically, and a
stored verdict survives a crash of the machine.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autograder.verdict import Verdict
from labkit.lab_failed import lab_failed

FOLDER = "verdicts"


@dataclass(frozen=True, order=True)
class GradingTask:
    """One notebook that one learner should have submitted."""

    student: str
    assignment: str
    notebook: str


@dataclass(frozen=True)
class StoredVerdict:
    """A stored verdict with its key and its cost."""

    key: str
    verdict: Verdict
    seconds: float
    """Wall-clock seconds of judging."""


@dataclass(frozen=True)
class GradingFailure:
    """The reason why a notebook has no verdict: an infrastructure error, which costs no marks."""

    reason: str
    """What went wrong, with the words of `labkit.lab_failed`."""
    attempts: int
    at: str
    """Time in UTC."""


class VerdictStore:
    """The stored verdicts of a course."""

    def __init__(self, course: Path) -> None:
        self._folder = course / FOLDER

    def find(self, work: GradingTask, key: str) -> StoredVerdict | None:
        """Return the verdict stored under this key; None if there is none, another one, or the file is damaged."""
        stored = self.latest(work)
        return stored if stored is not None and stored.key == key else None

    def latest(self, work: GradingTask) -> StoredVerdict | None:
        """Return the verdict stored last, whether it is still valid or not."""
        data = _read(self._path(work))
        try:
            return StoredVerdict(data["key"], Verdict.from_json(data["verdict"]), data["seconds"])
        except (KeyError, TypeError, AttributeError):
            return None

    def keep(self, work: GradingTask, stored: StoredVerdict) -> None:
        """Store a verdict, replacing an earlier one, and remove the failure. Raises OSError on a full disk."""
        data = {"key": stored.key, "verdict": stored.verdict.to_json(), "seconds": round(stored.seconds, 3)}
        _write(self._path(work), data)
        self.clear(work)

    def failure(self, work: GradingTask) -> GradingFailure | None:
        """Return why there is no verdict, if that is known."""
        try:
            return GradingFailure(**_read(self._path(work, ".error")))
        except TypeError:
            return None

    def failures(self, student: str = "*", assignment: str = "*", notebook: str = "*") -> list[GradingTask]:
        """Return what the grader failed to judge, sorted, of those that match the patterns."""
        parts = (path.relative_to(self._folder).parts for path in self._folder.glob("*/*/[!.]*.error.json"))
        works = (GradingTask(parts[0], parts[1], parts[2].removesuffix(".error.json")) for parts in parts)
        asked = f"{student}/{assignment}/{notebook}"
        return sorted(
            work for work in works if fnmatch.fnmatchcase(f"{work.student}/{work.assignment}/{work.notebook}", asked)
        )

    def fail(self, work: GradingTask, reason: str, attempts: int) -> GradingFailure:
        """Record a failure. An earlier verdict stays: it is valid again when its key matches again."""
        failure = GradingFailure(lab_failed(reason), attempts, datetime.now(UTC).isoformat(" ", "seconds"))
        _write(self._path(work, ".error"), asdict(failure))
        return failure

    def clear(self, work: GradingTask) -> None:
        """Remove the failure."""
        self._path(work, ".error").unlink(missing_ok=True)

    def _path(self, work: GradingTask, kind: str = "") -> Path:
        for name in (work.student, work.assignment, work.notebook):
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise ValueError(f"not a name of a learner, an assignment or a notebook: {name!r}")
        return self._folder / work.student / work.assignment / f"{work.notebook}{kind}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
