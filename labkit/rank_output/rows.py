"""The last rows of a rank's output, as a terminal shows them: carriage returns and cursor moves overwrite rows.

So a progress bar is one row, and so is each of several nested ones. Harmful control sequences are removed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LONGEST_LINE = 1_000
"""Maximum number of characters shown of a line."""
_MOST_ROWS = 16
_LONGEST_ESCAPE = 256
_TOKEN = re.compile(
    r"""(?P<text>[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+|\t)
    |(?P<newline>\n)
    |(?P<start>\r|\x1b\[[01]?G)
    |(?P<back>\x08)
    |(?P<colour>\x1b\[[0-9;:]{0,40}m)
    |\x1b\[(?P<count>\d{0,3})(?P<move>[AFBE])
    |(?P<erase>\x1b\[[0-3]?[JK])
    |(?P<other>\x1b\[[0-?]{0,60}[ -/]*[@-~] | \x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?
        | \x1b[PX^_][^\x1b]{0,200}(?:\x1b\\)? | \x1b[ -/]*[0-Z\\`-~] | \x07)
    |(?P<junk>[\s\S])""",
    re.VERBOSE,
)  # fmt: skip
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_HALF_COLOUR = re.compile(r"\x1b\[?[0-9;:]*\Z")
SPECIAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that need terminal handling; a text without them is plain lines."""


@dataclass
class Row:
    """A row that may still change."""

    text: str = ""
    is_bar: bool = False
    """Whether it was overwritten, as a progress bar is."""
    changed: float = field(default_factory=time.monotonic)


class Rows:
    """One stream of one rank. Finished rows are passed to `commit`.

    take_back: returns the last committed row when the cursor moves back to it; None if there is none.
    """

    def __init__(self, commit: Callable[[Row], None], take_back: Callable[[], str | None]) -> None:
        self._commit = commit
        self._take_back = take_back
        self._rows = [Row()]
        self._cursor = 0
        self._anew = False
        self._held = ""

    @property
    def is_plain(self) -> bool:
        """Whether there is a single row to which text is only appended."""
        return len(self._rows) == 1 and not self._anew and not self._held and not self._rows[0].is_bar

    @property
    def open_text(self) -> str:
        return self._rows[0].text

    def set_open(self, text: str) -> None:
        """Set the text after the last newline of a plain stream."""
        self._rows = [Row(text[: 2 * LONGEST_LINE])]

    def open_rows(self) -> list[Row]:
        """The rows being written, without blank ones."""
        return [row for row in self._rows if row.text.strip()]

    def write(self, text: str) -> None:
        """Add text, which may begin or end anywhere."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = ""
        if unfinished and len(unfinished[0]) < _LONGEST_ESCAPE:
            text, self._held = text[: unfinished.start()], unfinished[0]
        for token in _TOKEN.finditer(text):
            kind, piece = token.lastgroup, token[0]
            if kind in ("text", "colour"):
                self._put(piece)
            elif kind == "newline":
                self._newline()
            elif kind == "start":
                self._anew = True
            elif kind == "back":
                row = self._rows[self._cursor]
                row.text, row.is_bar, row.changed = row.text[:-1], True, time.monotonic()
            elif kind == "move":
                self._move(token["move"], int(token["count"] or 1))
            elif kind == "erase":
                self._erase(piece)
            elif kind == "junk":
                self._put("\ufffd")

    def close(self) -> None:
        """End the input: commit all rows."""
        self._held = ""
        for row in self._rows:
            if row.text.strip() if row.is_bar else row.text:
                self._leave(row)
        self._rows, self._cursor, self._anew = [Row()], 0, False

    def _put(self, text: str) -> None:
        row = self._rows[self._cursor]
        if self._anew:
            row.is_bar = row.is_bar or bool(row.text)
            row.text = ""
            self._anew = False
        # a rank may print forever without a newline; garbage is shown once
        if len(row.text) <= 2 * LONGEST_LINE and not (text == "\ufffd" and row.text.endswith(text)):
            row.text += text[: 2 * LONGEST_LINE]
        row.changed = time.monotonic()

    def _newline(self) -> None:
        self._anew = False
        self._cursor += 1
        if self._cursor == len(self._rows):
            several = len(self._rows) > 1
            for row in self._rows:
                if row.text.strip() or not (several or row.is_bar):
                    self._leave(row)
            self._rows, self._cursor = [Row()], 0
        else:
            self._anew = True

    def _move(self, direction: str, count: int) -> None:
        for _ in range(min(count, _MOST_ROWS)):
            if direction in "BE":
                self._cursor = min(self._cursor + 1, len(self._rows) - 1)
            elif self._cursor:
                self._cursor -= 1
            elif len(self._rows) < _MOST_ROWS and (text := self._take_back()) is not None:
                self._rows.insert(0, Row(text))
                # rows that the cursor returns to are bars
                for row in self._rows:
                    row.is_bar = True
        self._anew = True

    def _erase(self, sequence: str) -> None:
        if sequence.endswith("J"):
            del self._rows[self._cursor + 1 :]
        row = self._rows[self._cursor]
        if self._anew or "2" in sequence:
            row.text, row.is_bar, row.changed = "", True, time.monotonic()

    def _leave(self, row: Row) -> None:
        row.text = cut(row.text.rstrip(" ") if row.is_bar else row.text)
        self._commit(row)


def cut(text: str) -> str:
    """At most `LONGEST_LINE` characters, with colours reset at the end."""
    if len(text) > LONGEST_LINE:
        text = _HALF_COLOUR.sub("", text[:LONGEST_LINE]) + "…"
    if "\x1b" in text and not text.endswith(("\x1b[0m", "\x1b[m")):
        text += "\x1b[0m"
    return text
