"""The learner's cell as HTML: numbered lines with syntax colours, failing lines marked."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token

MOST_COLOURED = 40_000
"""Characters; a longer cell is shown without colours, which would make the page too large to send."""
MOST_SHOWN = 80_000
"""Characters; only the beginning of a longer cell is shown."""
MOST_LINES = 2000

_CLASSES = (
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (String, "s"),
    (Comment, "c"),
    (Number, "m"),
)
"""Token types and their classes in page.css."""


@dataclass(frozen=True)
class CodeLine:
    """One line of the cell."""

    number: int
    html: Markup
    remarks: Sequence[str] = ()
    """Errors at this line, in words."""


def lines_of(source: str, remarks: Mapping[int, Sequence[str]]) -> list[CodeLine]:
    """Return the lines of `source`; `remarks` by line number, from 1."""
    text = visible(source.replace("\r\n", "\n")[:MOST_SHOWN])
    rows = _coloured(text) if len(text) <= MOST_COLOURED else [escape(row) for row in text.split("\n")]
    return [CodeLine(number, row, remarks.get(number, ())) for number, row in enumerate(rows[:MOST_LINES], start=1)]


def _coloured(text: str) -> list[Markup]:
    rows = [Markup()]
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        first, *rest = (_span(kind, part) for part in value.split("\n"))
        rows[-1] += first
        rows += rest
    return rows


def _span(kind: Token, text: str) -> Markup:
    name = next((name for known, name in _CLASSES if kind in known), "") if text.strip() else ""
    return Markup('<span class="{}">{}</span>').format(name, text) if name else escape(text)


def visible(text: str) -> str:
    """Replace control characters, including those that change the writing direction, with their codes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else f"⟨{ord(char):02X}⟩"
        for char in text
    )
