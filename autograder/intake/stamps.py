"""When a submission was handed in, and what `nbgrader collect` noted about it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nbgrader.utils import parse_utc

from autograder.intake.limits import IntakeFailed

FORMAT = "%Y-%m-%d %H:%M:%S.%f UTC"
"""As nbgrader writes a time."""

# what dateutil makes of other texts is anybody's guess, and the name of a time zone can be a path
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?( ?(UTC|GMT|Z|[A-Z]{2,5}|[+-]\d\d:?\d\d))?", re.ASCII)


@dataclass(frozen=True)
class Record:
    """What `nbgrader collect` noted about one submission. It stands in `collected/`, where no learner writes."""

    student: str
    assignment: str
    handed_in: datetime
    """In UTC, without a time zone."""
    claimed: datetime
    """The time that the submission's folder had in its name."""
    owner: str
    owner_checked: bool
    content_hash: str
    source: str
    """Name of the folder in the exchange."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        times = {"handed_in": self.handed_in.strftime(FORMAT), "claimed": self.claimed.strftime(FORMAT)}
        return {**asdict(self), **times, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The inverse of `to_json`."""
        times = {name: parse_utc(data[name]) for name in ("handed_in", "claimed")}
        return cls(**{**data, **times, "notes": tuple(data["notes"])})


def told_time(text: str) -> datetime | None:
    """The time that a text written by anybody tells, in UTC without a time zone; None when it tells none."""
    text = text.strip()
    if not _TIME.fullmatch(text):
        return None
    try:
        time: datetime = parse_utc(text)
    except (ValueError, OverflowError, TypeError):
        return None
    return time.replace(tzinfo=None) if 1990 <= time.year < 2100 else None


def current_record(folder: Path) -> Record | None:
    """The record of the submission that lies in `submitted/`; `folder` is `collected/STUDENT/ASSIGNMENT`.

    None when nothing was collected. Raises IntakeFailed when the record cannot be read.
    """
    path = folder / "current.json"
    try:
        return Record.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise IntakeFailed(f"{path} cannot be read: {error}") from None
