"""The learner's cell as HTML: line by line as in the notebook, coloured by syntax, the lines that matter marked."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token

MOST_COLOURED = 40_000
"""Characters; a longer cell is shown without colours, which would make the page too large to send around."""
MOST_SHOWN = 80_000
"""Characters; of a longer cell only the beginning is shown."""
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
"""Kinds of token that have a colour in page.css."""


@dataclass(frozen=True)
class Line:
    """One line of the cell."""

    number: int
    html: Markup
    remarks: Sequence[str] = ()
    """What happened there."""


def lines_of(source: str, remarks: Mapping[int, Sequence[str]]) -> list[Line]:
    """The lines of `source`; `remarks` by number of the line, from 1."""
    text = visible(source.replace("\r\n", "\n")[:MOST_SHOWN])
    rows = _coloured(text) if len(text) <= MOST_COLOURED else [escape(row) for row in text.split("\n")]
    return [Line(number, row, remarks.get(number, ())) for number, row in enumerate(rows[:MOST_LINES], start=1)]


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
    """Control characters and those that turn the direction of writing are shown by their code, not obeyed."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else f"⟨{ord(char):02X}⟩"
        for char in text
    )
