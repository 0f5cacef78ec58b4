"""Submission times, and the records of `nbgrader collect`."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nbgrader.utils import parse_utc

from autograder.intake.limits import IntakeFailed

FORMAT = "%Y-%m-%d %H:%M:%S.%f UTC"
"""nbgrader's time format."""

# dateutil's reading of other texts is unpredictable, and a time zone's name can be a path
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?( ?(UTC|GMT|Z|[A-Z]{2,5}|[+-]\d\d:?\d\d))?", re.ASCII)


@dataclass(frozen=True)
class Record:
    """The record of one submission by `nbgrader collect`, stored in `collected/`, where learners cannot write."""

    student: str
    assignment: str
    handed_in: datetime
    """Time in UTC, without a time zone."""
    claimed: datetime
    """Time in the name of the submission's folder."""
    owner: str
    owner_checked: bool
    content_hash: str
    source: str
    """Name of the folder in the exchange."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        times = {"handed_in": self.handed_in.strftime(FORMAT), "claimed": self.claimed.strftime(FORMAT)}
        return {**asdict(self), **times, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The inverse of `to_json`."""
        times = {name: parse_utc(data[name]) for name in ("handed_in", "claimed")}
        return cls(**{**data, **times, "notes": tuple(data["notes"])})


def told_time(text: str) -> datetime | None:
    """Parse a time from untrusted text, in UTC without a time zone; None if it is not a valid time."""
    text = text.strip()
    return _parsed(text) if _TIME.fullmatch(text) else None


@functools.lru_cache(maxsize=4096)  # the grading queue reads the same names again and again
def _parsed(text: str) -> datetime | None:
    try:
        time: datetime = parse_utc(text)
    except (ValueError, OverflowError, TypeError):
        return None
    return time.replace(tzinfo=None) if 1990 <= time.year < 2100 else None


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
