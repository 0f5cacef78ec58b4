"""The last place where a learner worked: `.progress/place.json` in the workspace, so that it follows the files.

A learner who comes back, also on another machine with the same home, continues there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from labkit.catalogue import workspace
from labkit.linux.files import replace_text
from labkit.progress.store import FOLDER

_MOST_CHARACTERS = 200
"""Maximum length of each text: headings may be of any length."""


@dataclass(frozen=True)
class Place:
    """A cell of an exercise's notebook."""

    notebook: str
    """Path below the workspace."""
    cell: str
    """Id of the cell."""
    heading: str
    """The nearest heading at or above the cell; empty if there is none."""
    at: str
    """Time in UTC, ISO 8601."""


def last_place() -> Place | None:
    """Return the last place; None if there is none, or its file is broken."""
    try:
        place = Place(**json.loads(_path().read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return place if all(isinstance(value, str) for value in asdict(place).values()) else None


def save_place(notebook: str, cell: str, heading: str) -> None:
    """Save the last place. Raises OSError when the workspace cannot be written."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    place = Place(notebook, cell[:_MOST_CHARACTERS], heading[:_MOST_CHARACTERS], now)
    _path().parent.mkdir(parents=True, exist_ok=True)
    replace_text(_path(), json.dumps(asdict(place), indent=2) + "\n")


def _path() -> Path:
    return workspace() / FOLDER / "place.json"
