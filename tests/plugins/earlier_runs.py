"""`./lab test` consists of several pytest runs; their counts are kept in a folder for the last one to add up."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")
# removed from the environment: pytest runs started by tests count separately
FOLDER = os.environ.pop("LAB_TEST_RUNS", None)
"""Folder for counts of earlier runs; None where this run is the only one."""


def without_group(nodeid: str) -> str:
    """Return the id of a test without its group, which xdist appends."""
    return re.sub(r"@[\w/]+(\.py)?$", "", nodeid)


class EarlierRuns:
    """Counts of earlier runs under one name."""

    def __init__(self, name: str) -> None:
        self._file = Path(FOLDER, name) if FOLDER else None

    def joined_by(self, rows: list[Row]) -> list[Row]:
        """Save this run's rows for later ones; return them after those of all runs before."""
        if self._file is None:
            return rows
        before = self._file.read_text().splitlines() if self._file.exists() else []
        self._file.write_text("".join(f"{line}\n" for line in [*before, *map(json.dumps, rows)]))
        return [*map(json.loads, before), *rows]
