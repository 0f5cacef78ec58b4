"""Submission times: what a submission claims, when it was received, and the records of `nbgrader collect`."""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autograder.intake.folder import STAMPS, opened, read_stamp
from autograder.intake.limits import EntryRefused, IntakeFailed
from autograder.times import InvalidTime, utc_time

FORMAT = "%Y-%m-%d %H:%M:%S.%f UTC"
"""nbgrader's time format."""

# a submission's own text: fewer forms than in an instructor's, and no zones whose names are paths
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?: ?(?:UTC|GMT|Z|[A-Z]{2,5}|[+-]\d\d:?\d\d))?", re.ASCII
)


@dataclass(frozen=True)
class Record:
    """The record of one submission by `nbgrader collect`, stored in `collected/`, where learners cannot write."""

    student: str
    assignment: str
    handed_in: datetime
    """Time in UTC, without a time zone."""
    claimed: datetime
    """Time in the name of the submission's folder."""
    received: datetime
    """Time at which the exchange received it, by which submissions are ordered."""
    owner: str
    owner_checked: bool
    content_hash: str
    source: str
    """Name of the folder in the exchange."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        times = {name: getattr(self, name).strftime(FORMAT) for name in _TIMES}
        return {**asdict(self), **times, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The inverse of `to_json`."""
        written = {"received": data["handed_in"], **data}  # earlier versions wrote no time of receipt
        times = {name: utc_time(written[name]) for name in _TIMES}
        return cls(**{**written, **times, "notes": tuple(data["notes"])})


_TIMES = ("handed_in", "claimed", "received")


@dataclass(frozen=True)
class Stamp:
    """Time of a submission that `nbgrader collect` did not record."""

    time: datetime | None
    """Time in UTC, without a time zone; None without a `timestamp.txt`."""
    problem: str = ""
    """Why it is not the time in `timestamp.txt`, for its author and the instructor."""


def told_time(text: str) -> datetime | None:
    """Parse a time from untrusted text, in UTC without a time zone; None if it is not a valid time."""
    text = text.strip()
    return _parsed(text) if _TIME.fullmatch(text) else None


@functools.lru_cache(maxsize=4096)  # the grading queue reads the same names again and again
def _parsed(text: str) -> datetime | None:
    try:
        time = utc_time(text)
    except InvalidTime:
        return None
    return time if 1990 <= time.year < 2100 else None


def time_in_name(text: str) -> datetime | None:
    """Parse the time in the name of a folder in the exchange, as `told_time`; None if it is not a valid time.

    A zone that is not known is read as UTC: the time counts only if the kernel confirms it.
    """
    match = _TIME.fullmatch(text.strip())
    return told_time(text) or (told_time(match[1]) if match else None)


def stamp_of(folder: int) -> Stamp:
    """Return the time of a submission, an open folder, by its `timestamp.txt`.

    Where that file has no valid time, the time at which this machine received the file counts: otherwise the submission
    would never be late.
    """
    try:
        status = os.stat(STAMPS[0], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return Stamp(None)
    time = told_time(read_stamp(folder, STAMPS[0]))
    if time is not None:
        return Stamp(time)
    return Stamp(in_utc(status.st_ctime), f"`{STAMPS[0]}` has no valid time: the time of its receipt counts.")


def stamp_in(submitted: Path) -> Stamp:
    """Return the time of the submission in `submitted`; see `stamp_of`. Raises IntakeFailed."""
    try:
        with opened(submitted) as folder:
            return stamp_of(folder)
    except EntryRefused:
        return Stamp(None)


def arrival(submitted: Path, collected: Path) -> datetime:
    """Return when a submission arrived, in UTC: submissions are judged in this order.

    collected: its `collected/STUDENT/ASSIGNMENT`. What cannot be read comes last: judging it reports the error.
    """
    try:
        record = current_record(collected)
        if record:
            return record.received
        copied = in_utc(os.lstat(submitted).st_ctime)
        return min(stamp_in(submitted).time or copied, copied)  # a time in the future is none of an arrival
    except (IntakeFailed, OSError):
        return datetime.max


def received_at(path: Path, status: os.stat_result) -> float:
    """Return when a folder in the exchange was received, in seconds since 1970, by the clock of its file system.

    status: that of the folder. nbgrader writes the secret last; its time survives a backup of the exchange, and changes
    of permissions, which move the folder's. A learner who sets it changes the order of the own submissions only.
    """
    try:
        return min(status.st_ctime, os.lstat(path / STAMPS[1]).st_mtime)
    except OSError:
        return status.st_ctime


def in_utc(seconds: float) -> datetime:
    """Return a time in seconds since 1970 in UTC, without a time zone."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def current_record(folder: Path) -> Record | None:
    """Return the record of the submission in `submitted/`; `folder` is `collected/STUDENT/ASSIGNMENT`.

    None when nothing was collected. Raises IntakeFailed when the record cannot be read.
    """
    path = folder / "current.json"
    try:
        return Record.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise IntakeFailed(f"{path} cannot be read: {error}") from None
