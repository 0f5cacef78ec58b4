"""Collected submissions of one learner for one assignment, and the feedback pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nbgrader.utils import notebook_hash

from autograder.intake.limits import IntakeFailed
from autograder.intake.stamps import Record, current_record

SECRET = "submission_secret.txt"


@dataclass(frozen=True)
class Collected:
    """Submissions of one learner for one assignment that were collected."""

    sources: frozenset[str] = frozenset()
    """Names of their folders in the exchange."""
    handed_in: datetime | None = None
    """Time of the submission that is graded: UTC, without a time zone."""


def collected(folder: Path) -> Collected:
    """Read `collected/LEARNER/ASSIGNMENT` of the course."""
    try:
        current = current_record(folder)
    except IntakeFailed:
        return Collected()
    if current is None:
        return Collected()
    sources = {current.source}
    for path in folder.glob("[!.]*.json"):
        if path.name != "current.json":
            sources.add(Record.from_json(json.loads(path.read_text())).source)
    return Collected(frozenset(sources), current.handed_in)


def feedback_pages(folder: Path) -> dict[str, str]:
    """Read `feedback/LEARNER/ASSIGNMENT` of the course: each notebook with a page, and its file name once returned.

    The file name is empty for a submission that did not come through the exchange, to which nothing is returned.
    """
    try:
        secret = (folder / SECRET).read_text()
    except OSError:
        secret = ""
    return {
        page.stem: f"{notebook_hash(secret=secret, notebook_id=page.stem)}.html" if secret else ""
        for page in folder.glob("[!.]*.html")
    }
