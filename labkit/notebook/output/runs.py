"""The runs of this notebook with their outputs: for a page that was closed meanwhile, and for `%runs`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KEPT = 20


@dataclass
class Record:
    """One run. Its results are kept as text, not as values, which may be large."""

    cell: int
    """Number of the cell that ran it."""
    ranks: str
    """`4 ranks`."""
    seconds: float = 0.0
    ended: str = "running"
    """End of the run, in a few words."""
    text: str = ""
    """Output of the ranks."""
    result: str = ""
    error: tuple[str, str, list[str]] | None = None
    """Name, message and lines of an error."""
    logs: Path | None = None
    when_told: Callable[[list[dict[str, Any]]], None] | None = field(default=None, repr=False)
    """Callback for `outputs`, when they are known and when they change."""

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The cell's outputs, in the notebook's file format."""
        made: list[dict[str, Any]] = []
        if self.text:
            made.append({"output_type": "stream", "name": "stdout", "text": self.text})
        if self.result:
            shown = {"text/plain": self.result}
            made.append({"output_type": "execute_result", "execution_count": self.cell, "data": shown, "metadata": {}})
        if self.error:
            name, message, lines = self.error
            made.append({"output_type": "error", "ename": name, "evalue": message, "traceback": lines})
        # empty would mean that the cell still runs
        return made or [{"output_type": "stream", "name": "stdout", "text": ""}]

    def tell(self) -> None:
        """Pass the current outputs to `when_told`."""
        if self.when_told is not None:
            self.when_told(self.outputs)


class Runs:
    """The last runs of a notebook, by cell number."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=_KEPT)

    def add(self, record: Record) -> None:
        self._records.append(record)

    @property
    def all(self) -> list[Record]:
        """All runs, the oldest first."""
        return list(self._records)

    def of_cell(self, number: int) -> Record | None:
        return next((record for record in reversed(self._records) if record.cell == number), None)


runs = Runs()
"""The runs of this notebook."""
