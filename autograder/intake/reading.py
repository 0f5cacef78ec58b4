"""Reading a submitted notebook: the text of each cell and the cell's claims. Nothing is trusted.

A notebook of format 3 keeps its cells in worksheets, a code cell's text as `input`, and headings as a separate cell
type. It has no cell ids; `grade_id` is in the cell's metadata in both formats, and identifies the cell in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autograder.intake.limits import Limits
from autograder.intake.pull import CutOff, JsonCursor, MalformedJson
from labkit.text_files import encoding_of

Claim = bool | int | float

_METADATA = 20_000
"""Maximum bytes of a cell's metadata. nbgrader's take 200."""
_CLAIMS = ("grade", "solution", "locked", "points")
CONFLICT = re.compile(r"^(?:<{7}|>{7})(?: .*)?\r?$", re.MULTILINE)
"""A line that git writes around the two sides of a conflict."""
_OTHER_FILES = (
    (b"<", "a page of the web"),
    (b"PK\x03\x04", "an archive (zip)"),
    (b"\x1f\x8b", "an archive (gzip)"),
    (b"%PDF", "a PDF"),
)
"""Beginnings of files that are handed in for a notebook, and what they are."""


@dataclass(frozen=True)
class SubmittedCell:
    """One cell of a submission, with its own claims."""

    grade_id: str
    """nbgrader's id of the cell; empty when it has none."""
    source: str
    cell_type: str = "code"
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """`grade`, `solution`, `locked`, `points`, where they are numbers or flags."""
    attachments: bool = False


@dataclass(frozen=True)
class SubmittedCells:
    """The cells of a submitted notebook, whatever its state, and problems of the file."""

    cells: tuple[SubmittedCell, ...] = ()
    notes: tuple[str, ...] = ()
    unread: str = ""
    """Why there are no cells, for the author and the instructor."""


def read_cells(data: bytes, limits: Limits | None = None) -> SubmittedCells:
    """Return the cells of a notebook. Never raises, whatever the bytes: unreadable parts are noted."""
    limits = limits or Limits()
    data, notes = _utf_8(data)
    pull = JsonCursor(data, limits.json_values)
    cells: list[SubmittedCell] | None = None
    version = of_cells = 4
    try:
        if not pull.next_is(b"{"):
            raise MalformedJson(_other_file(data))
        for key in pull.members():
            if key == "cells":
                of_cells = 4
                cells = _cells(pull, pull.elements(), limits, notes)
            elif key == "worksheets":
                of_cells = 3
                cells = _cells(pull, _in_worksheets(pull), limits, notes)
            elif key == "nbformat":
                version = pull.value(20)
            else:
                pull.skip()
        pull.end()
        if cells is None:
            raise MalformedJson("it has no list of cells")
    except _TooManyCells as enough:
        cells = enough.cells
        _note(notes, f"Only the first {enough.number:,} cells of the notebook were read.")
    except MalformedJson as problem:
        reason = _reason(problem, pull, data)
        return SubmittedCells((), (reason,), reason)
    if of_cells == 3:
        notes.append("The notebook is in format 3, which Jupyter wrote until 2015; its cells were read.")
    elif version != 4:
        notes.append("The file does not say that it is of notebook format 4; it was read as if it were.")
    if pull.latin_1:
        notes.append("The file is not in UTF-8; it was read as Latin-1.")
    if not cells:
        notes.append("The notebook has no cells.")
    return SubmittedCells(tuple(cells), tuple(notes), "" if cells else notes[-1])


def _reason(problem: MalformedJson, pull: JsonCursor, data: bytes) -> str:
    """Return why a file could not be read as a notebook, with its place."""
    mark = CONFLICT.search(data.decode("utf-8", "replace"))
    if mark is not None:
        line = mark.string.count("\n", 0, mark.start()) + 1
        return f"The file is not a notebook: it has git's conflict marks, the first one in line {line:,}."
    if isinstance(problem, CutOff) and data.strip():
        return f"The file is not a notebook: it is cut off in the middle ({pull.place})."
    place = f" ({pull.place})" if data.lstrip().startswith(b"{") else ""
    return f"The file is not a notebook: {problem}{place}."


def _other_file(data: bytes) -> str:
    """Return what a file is that does not begin as a notebook."""
    begins = data.lstrip()
    if not begins.strip(b"\0"):
        return "it is empty"
    return next(
        (f"it is {kind}" for start, kind in _OTHER_FILES if begins.startswith(start)), "it is not a JSON object"
    )


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)


def _utf_8(data: bytes) -> tuple[bytes, list[str]]:
    encoding, skipped = encoding_of(data)
    if encoding == "utf-8":
        return data[skipped:], []
    recoded = data[skipped:].decode(encoding, "replace").encode("utf-8", "replace")
    return recoded, [f"The file is in {encoding[:6].upper()}, not UTF-8."]


def _in_worksheets(pull: JsonCursor) -> Iterator[None]:
    """Yield once for each cell in the worksheets of a format 3 notebook; the caller takes it."""
    for _ in pull.elements():
        if not pull.next_is(b"{"):
            pull.skip()
            continue
        for key in pull.members():
            if key == "cells" and pull.next_is(b"["):
                yield from pull.elements()
            else:
                pull.skip()


def _cells(pull: JsonCursor, elements: Iterator[None], limits: Limits, notes: list[str]) -> list[SubmittedCell] | None:
    """Return the cells, or None if they are not a list; of duplicate keys the last counts, as in every JSON reader."""
    if not pull.next_is(b"["):
        pull.skip()
        return None
    cells: list[SubmittedCell] = []
    left = 10 * limits.source
    for number, _ in enumerate(elements):
        if number >= limits.cells or left < 0:
            raise _TooManyCells(cells, number)
        if pull.next_is(b"{"):
            cell = _cell(pull, limits, notes)
            if cell is not None:
                cells.append(cell)
                left -= len(cell.source)
        else:
            pull.skip()
    return cells


class _TooManyCells(Exception):
    """There are more cells than are read."""

    def __init__(self, cells: list[SubmittedCell], number: int) -> None:
        self.cells = cells
        self.number = number


def _cell(pull: JsonCursor, limits: Limits, notes: list[str]) -> SubmittedCell | None:
    cell_type, grade_id, claims, attachments = "", "", dict[str, Claim](), False
    source: str | None = None
    heading = 0
    for key in pull.members():
        if key in ("source", "input"):
            source = _source(pull, limits, notes)
        elif key == "level":
            level = pull.value(20)
            heading = level if type(level) is int and 0 < level < 7 else 0
        elif key == "cell_type":
            value = pull.value(20)
            cell_type = value if type(value) is str else ""
        elif key == "metadata":
            grade_id, claims = _metadata(pull.value(_METADATA))
        elif key == "attachments":
            attachments = pull.value(20) != {}
        else:
            pull.skip()
    if source is None:
        return None
    if cell_type == "heading":
        cell_type, source = "markdown", f"{'#' * heading} {source}"
    return SubmittedCell(grade_id, source, cell_type, claims, attachments)


def _source(pull: JsonCursor, limits: Limits, notes: list[str]) -> str | None:
    """Return a cell's text, from one text or a list of lines; None when it is neither, or too long."""
    is_text = pull.next_is(b'"') or pull.next_is(b"[")
    # a character beyond 16 bits can take twelve bytes; a line takes three more than its text
    value = pull.value(12 * limits.source)
    if type(value) is list and all(type(line) is str for line in value):
        value = "".join(value)
    if is_text and (value is None or len(value) > limits.source):
        _note(notes, f"A cell of more than {limits.source:,} characters was left out.")
        return None
    # lone surrogates are valid in JSON but cannot be encoded
    return value.encode("utf-8", "replace").decode() if type(value) is str else None


def _metadata(metadata: Any) -> tuple[str, dict[str, Claim]]:
    nbgrader = metadata.get("nbgrader") if type(metadata) is dict else None
    if type(nbgrader) is not dict:
        return "", {}
    grade_id = nbgrader.get("grade_id")
    claims = {name: nbgrader[name] for name in _CLAIMS if type(nbgrader.get(name)) in (bool, int, float)}
    return grade_id if type(grade_id) is str else "", claims
