"""The reference solution of an exercise where it is released, and how a learner's module differs from it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from labkit.catalogue import Exercise

_MARKERS = re.compile(r"^[ \t]*### (BEGIN|END) SOLUTION[ \t]*\n", re.MULTILINE)
_MAGIC = re.compile(r"\A(# %.*\n|\n)*")
"""First lines of a saved module: the line of `%%exercise` is a comment there."""
_PLAIN = "background:none"
"""Style of rows without a difference: JupyterLab would shade every other row, as if it differed."""
_CONTEXT = 2
"""Equal lines shown around a difference."""


class Row(NamedTuple):
    """One row of two texts side by side."""

    own_line: int
    """Line number in the learner's text; 0: the row has no line of it."""
    own: str
    reference_line: int
    reference: str

    @property
    def differs(self) -> bool:
        return self.own != self.reference or not (self.own_line and self.reference_line)


def reference(exercise: Exercise) -> str | None:
    """Return the solution's text; None where the instructor has not released it: the course has no such file."""
    if not exercise.paths["solution"].is_file():
        return None
    return _MARKERS.sub("", exercise.source("solution")[0])


def rows(own: str, other: str) -> list[list[Row]]:
    """Return the differing parts of two texts, each with two equal lines around it."""
    skipped = _MAGIC.match(own)
    offset = skipped[0].count("\n") if skipped else 0
    own_lines, other_lines = own.splitlines()[offset:], other.splitlines()
    groups = difflib.SequenceMatcher(None, own_lines, other_lines, autojunk=False).get_grouped_opcodes(_CONTEXT)
    return [[row for code in group for row in _rows(own_lines, other_lines, offset, *code[1:])] for group in groups]


def side_by_side_html(own: str, other: str) -> str:
    """Return two columns with line numbers, as HTML with inline styles; a mark in each row says which lines differ."""
    parts = rows(own, other)
    if not parts:
        return "<p>Your module is the reference solution, line by line.</p>"
    gap = f'<tr style="{_PLAIN}"><td colspan="6" style="text-align:center">⋮</td></tr>'
    body = gap.join("".join(map(_row_html, part)) for part in parts)
    head = "".join(f'<th colspan="3" style="text-align:left">{name}</th>' for name in ("yours", "reference"))
    widths = "".join(f'<col style="width:{width}">' for width in 2 * ("3.5em", "1.2em", "auto"))
    return (
        '<table style="font-family:monospace;font-size:85%;border-collapse:collapse;table-layout:fixed;width:100%">'
        f"<colgroup>{widths}</colgroup><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def unified_text(own: str, other: str) -> str:
    """Return the differences for a terminal: `-` marks your lines, `+` those of the reference."""
    lines = []
    for part in rows(own, other):
        lines.append(f"@@ line {next((row.own_line for row in part if row.own_line), 0)}")
        for equal, run in _runs(part):
            if equal:
                lines += [f"  {row.own}" for row in run]
            else:
                lines += [f"- {row.own}" for row in run if row.own_line]
                lines += [f"+ {row.reference}" for row in run if row.reference_line]
    return "\n".join(lines) or "your module is the reference solution, line by line"


def _rows(left: list[str], right: list[str], offset: int, i: int, i_end: int, j: int, j_end: int) -> Iterator[Row]:
    for k in range(max(i_end - i, j_end - j)):
        own, other = i + k < i_end, j + k < j_end
        yield Row(
            offset + i + k + 1 if own else 0,
            left[i + k] if own else "",
            j + k + 1 if other else 0,
            right[j + k] if other else "",
        )


def _runs(part: list[Row]) -> Iterator[tuple[bool, list[Row]]]:
    run: list[Row] = []
    for row in part:
        if run and run[-1].differs != row.differs:
            yield not run[-1].differs, run
            run = []
        run.append(row)
    if run:
        yield not run[-1].differs, run


def _row_html(row: Row) -> str:
    own = _cells(row.own_line, row.own, "- #d55e0026" if row.differs else "")
    other = _cells(row.reference_line, row.reference, "+ #0072b226" if row.differs else "")
    return f'<tr style="{_PLAIN}">{own}{other}</tr>'


def _cells(line: int, text: str, marked: str) -> str:
    """Cells for the line's number, its mark and its text. marked: the mark and the background; empty: none."""
    mark, _, colour = marked.partition(" ") if line else ("", "", "")
    shaded = f"background:{colour};" if colour else ""
    padding = "padding:0 .5em;text-align:left;vertical-align:top;"
    return (
        f'<td style="{padding}opacity:.7">{line or ""}</td><td style="{shaded}">{mark}</td>'
        f'<td style="{padding}{shaded}white-space:pre-wrap;overflow-wrap:anywhere">{escape(text)}</td>'
    )
