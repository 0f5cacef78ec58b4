"""Verdicts in the course's folder, so that nothing is judged twice: `verdicts/STUDENT/ASSIGNMENT/NOTEBOOK.json`.

A verdict lies beside its key (see `key.py`) and counts only while the key still fits. Where there is no verdict since
the machine and not the submission failed, `NOTEBOOK.error.json` says why. Files appear whole or not at all, and what
was once said to be kept is there after a crash of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autograder.verdict import Verdict

FOLDER = "verdicts"


@dataclass(frozen=True, order=True)
class Work:
    """One notebook that one learner is to have handed in."""

    student: str
    assignment: str
    notebook: str


@dataclass(frozen=True)
class Kept:
    """A verdict with its key, and what it took."""

    key: str
    verdict: Verdict
    seconds: float
    """Wall-clock time of judging."""


@dataclass(frozen=True)
class Failure:
    """Why a notebook has no verdict: an error of the infrastructure, nobody's marks."""

    reason: str
    attempts: int
    at: str
    """When, UTC."""


class Verdicts:
    """The kept verdicts of a course."""

    def __init__(self, course: Path) -> None:
        self._folder = course / FOLDER

    def find(self, work: Work, key: str) -> Kept | None:
        """The verdict that was kept under this key; None when there is none, another one, or the file is damaged."""
        kept = self.latest(work)
        return kept if kept is not None and kept.key == key else None

    def latest(self, work: Work) -> Kept | None:
        """The verdict that was kept last, whether it still counts or not."""
        data = _read(self._path(work))
        try:
            return Kept(data["key"], Verdict.from_json(data["verdict"]), data["seconds"])
        except (KeyError, TypeError, AttributeError):
            return None

    def keep(self, work: Work, kept: Kept) -> None:
        """Keep a verdict in the place of an earlier one; a failure is forgotten. Raises OSError: a full disk."""
        data = {"key": kept.key, "verdict": kept.verdict.to_json(), "seconds": round(kept.seconds, 3)}
        _write(self._path(work), data)
        self.clear(work)

    def failure(self, work: Work) -> Failure | None:
        """Why there is no verdict, if that is known."""
        try:
            return Failure(**_read(self._path(work, ".error")))
        except TypeError:
            return None

    def fail(self, work: Work, reason: str, attempts: int) -> Failure:
        """Set a failure down. A verdict that was kept earlier stays: it counts again when its key fits again."""
        failure = Failure(reason, attempts, datetime.now(UTC).isoformat(" ", "seconds"))
        _write(self._path(work, ".error"), asdict(failure))
        return failure

    def clear(self, work: Work) -> None:
        """Forget a failure."""
        self._path(work, ".error").unlink(missing_ok=True)

    def _path(self, work: Work, kind: str = "") -> Path:
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
