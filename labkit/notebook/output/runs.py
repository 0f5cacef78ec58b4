"""The runs of this notebook, and what each left: for a page that was closed meanwhile, and for `%runs`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KEPT = 20


@dataclass
class Record:
    """One run. What it left is kept as text, not as values: those may be large."""

    cell: int
    """Number of the cell that ran it."""
    ranks: str
    """`4 ranks`."""
    seconds: float = 0.0
    ended: str = "running"
    """In a few words."""
    text: str = ""
    """What the ranks printed."""
    result: str = ""
    error: tuple[str, str, list[str]] | None = None
    """Name, message and lines of an error."""
    logs: Path | None = None
    when_told: Callable[[list[dict[str, Any]]], None] | None = field(default=None, repr=False)
    """Called with `outputs` when they are known, and when they change."""

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """What the cell left, as a notebook's file has it."""
        made: list[dict[str, Any]] = []
        if self.text:
            made.append({"output_type": "stream", "name": "stdout", "text": self.text})
        if self.result:
            shown = {"text/plain": self.result}
            made.append({"output_type": "execute_result", "execution_count": self.cell, "data": shown, "metadata": {}})
        if self.error:
            name, message, lines = self.error
            made.append({"output_type": "error", "ename": name, "evalue": message, "traceback": lines})
        # a cell that left nothing has ended too
        return made or [{"output_type": "stream", "name": "stdout", "text": ""}]

    def tell(self) -> None:
        """What stands here is what the cell left, until more is known."""
        if self.when_told is not None:
            self.when_told(self.outputs)


class Runs:
    """The last runs of a notebook, by the numbers of their cells."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=_KEPT)

    def add(self, record: Record) -> None:
        self._records.append(record)

    @property
    def all(self) -> list[Record]:
        """The oldest one first."""
        return list(self._records)

    def of_cell(self, number: int) -> Record | None:
        return next((record for record in reversed(self._records) if record.cell == number), None)


runs = Runs()
"""Those of this notebook."""
