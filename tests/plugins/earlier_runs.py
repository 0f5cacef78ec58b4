"""`./lab test` is several runs of pytest; what they count is kept in a folder, so that the last one can sum it up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeVar

Row = TypeVar("Row")
# taken out of the environment: pytest runs that tests start count for themselves
FOLDER = os.environ.pop("LAB_TEST_RUNS", None)
"""Where earlier runs left their counts; None where this run is the only one."""


class EarlierRuns:
    """What earlier runs have counted under one name."""

    def __init__(self, name: str) -> None:
        self._file = Path(FOLDER, name) if FOLDER else None

    def joined_by(self, rows: list[Row]) -> list[Row]:
        """Keep this run's rows for later ones; return them after those of all runs before."""
        if self._file is None:
            return rows
        before = self._file.read_text().splitlines() if self._file.exists() else []
        self._file.write_text("".join(f"{line}\n" for line in [*before, *map(json.dumps, rows)]))
        return [*map(json.loads, before), *rows]
