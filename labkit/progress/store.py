"""Results saved in the workspace, one small file per exercise: `.progress/PHASE/NAME.json`.

Several kernels may write at the same time: each change is made under a lock, and a file is replaced as a whole. A file
that is not JSON is renamed, never overwritten. Fields that another version of labkit wrote are kept; those without the
expected type are ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.catalogue import Exercise, find, workspace
from labkit.linux.files import replace_text

FOLDER = ".progress"
"""Folder of the saved results, in the workspace."""

_KEPT_PASSES = 8


@dataclass(frozen=True)
class FailedCheck:
    """A check that failed though the code that it calls is written."""

    todo: int
    """Number of the TODO to look at."""
    title: str


@dataclass(frozen=True)
class Checked:
    """Points of the visible checks."""

    last: float
    best: float
    points: float
    """Points of all checks at the last time."""
    last_at: str
    """Time in UTC, ISO 8601."""
    best_at: str
    """Time when `best` was reached first, in UTC, ISO 8601."""
    failed: Sequence[FailedCheck] = ()
    """Checks that failed at the last time, in their order."""


@dataclass(frozen=True)
class Answer:
    """A learner's answer to one question."""

    tries: int
    """Number of tries up to the right one, or so far."""
    right: bool
    at: str
    """Time of the last try that counts; in UTC, ISO 8601."""


@dataclass(frozen=True)
class Record:
    """Saved results of one exercise."""

    checked: Checked | None
    """Points of the visible checks; None if it has never been checked."""
    answers: Mapping[str, Answer]
    """Answers by the question's id."""
    passes: Sequence[str] = ()
    """Fingerprints of modules that pass the visible checks, the latest last."""


def recorded(exercise: Exercise | str) -> Record:
    """Return what is saved about an exercise, given by itself or by its name. Raises `UnknownExercise`."""
    data = _read(_path(exercise)) or {}
    questions = data.get("answers")
    parsed = {key: _answer(fields) for key, fields in questions.items()} if isinstance(questions, dict) else {}
    answers = {key: answer for key, answer in parsed.items() if answer is not None}
    return Record(_checked(data.get("checked")), answers, _texts(data.get("passes")))


def save_check(exercise: Exercise | str, earned: float, points: float, failed: Sequence[FailedCheck] = ()) -> None:
    """Save the result of the visible checks. Raises OSError when the workspace cannot be written."""

    def change(data: dict[str, Any]) -> None:
        now, before = _now(), _checked(data.get("checked"))
        best, best_at = (earned, now) if before is None or earned > before.best else (before.best, before.best_at)
        if not isinstance(data.get("checked"), dict):
            data["checked"] = {}
        data["checked"].update(asdict(Checked(earned, best, points, now, best_at, failed)))

    _update(_path(exercise), change)


def save_pass(exercise: Exercise | str, fingerprint: str) -> None:
    """Save that the module with this fingerprint passes the visible checks; the latest few are kept.

    Raises OSError when the workspace cannot be written.
    """

    def change(data: dict[str, Any]) -> None:
        others = [known for known in _texts(data.get("passes")) if known != fingerprint]
        data["passes"] = [*others, fingerprint][-_KEPT_PASSES:]

    _update(_path(exercise), change)


def save_answer(exercise: Exercise | str, question_id: str, tries: int, right: bool) -> None:
    """Save the answer to a question. An answer that was right stays as it is.

    tries: number of tries, with this one. Raises OSError when the workspace cannot be written.
    """

    def change(data: dict[str, Any]) -> None:
        if not isinstance(data.get("answers"), dict):
            data["answers"] = {}
        before = _answer(data["answers"].get(question_id))
        if before is None or not before.right:
            data["answers"][question_id] = asdict(Answer(tries, right, _now()))

    _update(_path(exercise), change)


def _path(exercise: Exercise | str) -> Path:
    name = exercise.name if isinstance(exercise, Exercise) else find(exercise).name
    return workspace() / FOLDER / f"{name}.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _checked(fields: object) -> Checked | None:
    if not isinstance(fields, dict):
        return None
    numbers = [value for name in ("last", "best", "points") if isinstance(value := fields.get(name), int | float)]
    if len(numbers) < 3 or not all(math.isfinite(value) for value in numbers):
        return None
    last, best, points = numbers
    times = str(fields.get("last_at", "")), str(fields.get("best_at", ""))
    return Checked(last, best, points, *times, _failed(fields.get("failed")))


def _texts(items: object) -> list[str]:
    return [item for item in items if isinstance(item, str)] if isinstance(items, list) else []


def _failed(fields: object) -> list[FailedCheck]:
    known = [check for check in fields if isinstance(check, dict)] if isinstance(fields, list) else []
    entries = [(check.get("todo"), check.get("title")) for check in known]
    return [FailedCheck(todo, title) for todo, title in entries if type(todo) is int and isinstance(title, str)]


def _answer(fields: object) -> Answer | None:
    if not isinstance(fields, dict):
        return None
    tries, right = fields.get("tries"), fields.get("right")
    return Answer(tries, right, str(fields.get("at", ""))) if type(tries) is int and type(right) is bool else None


def _read(path: Path) -> dict[str, Any] | None:
    """The file's object; None if there is no file, or it is broken."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _update(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with locked(path.with_suffix(".lock")):
        data = _read(path)
        if data is None and path.is_file():  # broken: kept, for whoever wants to repair it
            path.rename(path.with_name(f"{path.name}.broken-{time.time_ns()}"))
        data = data or {}
        change(data)
        replace_text(path, json.dumps(data, indent=2) + "\n")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, across processes; without it where the file system has no locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as held:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
