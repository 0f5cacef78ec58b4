"""Entries of the glossary and of the troubleshooting page, found by a word or by an error's text.

Both are pages of `docs/`, in the course folder; an installed labkit without a course has none.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.catalogue import root

VARIES = "…"
"""Placeholder, in an error's text on the page, for anything that varies."""


@dataclass(frozen=True)
class Explanation:
    """One entry: a word of the glossary, or an error with its cause and cure."""

    page: str
    """File name in `docs/`."""
    title: str
    text: str
    """Text in Markdown; links are relative to `docs/`."""
    errors: tuple[str, ...] = ()
    """Lines of the error's text, word for word; empty for a word."""

    def fits(self, error: str, word_for_word: bool = True) -> bool:
        """Whether all lines of this entry occur in the text of an error.

        word_for_word: False if numbers, names in quotes and shapes may be others than those of the entry.
        """
        error_text = " ".join(error.split())
        return bool(self.errors) and all(_pattern(line, word_for_word).search(error_text) for line in self.errors)


def explain_word(word: str) -> Explanation | None:
    """Return the entry of a word, a name in a trace such as `isend`, or a type of error; None if there is none."""
    wanted = _plain(word)
    words = entries("glossary.md")
    for entry in words:
        if wanted in [_plain(part) for part in entry.title.split(", ")]:
            return entry
    for entry in words:
        if f"`{word}`" in entry.text:
            return entry
    for entry in entries("troubleshooting.md"):
        if wanted == _plain(entry.title) or any(word == line.partition(":")[0] for line in entry.errors):
            return entry
    return None


def explain_error(errors: Sequence[str]) -> Explanation | None:
    """Return the entry for the first of these texts, `TYPE: MESSAGE`, that any entry fits; None if none fits.

    If several entries fit, return the one with the longest text: it is the most specific.
    """
    known = entries("troubleshooting.md")
    for error in errors:
        for word_for_word in (True, False):
            if fitting := [entry for entry in known if entry.fits(error, word_for_word)]:
                return max(fitting, key=lambda entry: sum(map(len, entry.errors)))
    return None


def similar_words(word: str) -> list[str]:
    """Words of the glossary that are spelled like `word`, or have it as a part; three at most."""
    titles = {_plain(entry.title): entry.title for entry in entries("glossary.md")}
    parts = [title for plain, title in titles.items() if _plain(word) in plain]
    near = difflib.get_close_matches(_plain(word), titles, n=3, cutoff=0.6)
    return list(dict.fromkeys([*parts, *(titles[one] for one in near)]))[:3]


def entries(page: str) -> tuple[Explanation, ...]:
    """All entries of a page of `docs/`: its headings of the third level. Empty if the page does not exist."""
    path = root() / "docs" / page
    return _entries(path, path.read_text()) if path.is_file() else ()


@functools.lru_cache(maxsize=4)
def _entries(path: Path, text: str) -> tuple[Explanation, ...]:
    parsed = []
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        block = re.match(r"\n((?:    .*\n)+)", rest)
        lines = tuple(line.strip() for line in block[1].splitlines()) if block else ()
        parsed.append(Explanation(path.name, title, re.split(r"^## ", rest, flags=re.MULTILINE)[0].strip("\n"), lines))
    return tuple(parsed)


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "-").replace(" ", "-")


_OTHER = (
    (re.compile(r"\d+(?: → \d+)+"), r"\d+(?: → \d+)+"),  # a cycle of ranks
    (re.compile(r"\[[^\]]*\]"), r"\[[^\]]*\]"),  # a shape
    (re.compile(r"'[^']*'"), r"'[^']*'"),
    (re.compile(r"(?<![\w-])\d+(?:[-.x]\d+)*"), r"\d+(?:[-.x]\d+)*"),  # but not `float32`, nor an exit code such as -9
)
"""Parts of an error's text that differ from program to program, and the pattern of others of their kind."""


@functools.lru_cache(maxsize=512)
def _pattern(line: str, word_for_word: bool) -> re.Pattern[str]:
    parts = line.split(VARIES)
    return re.compile(".*".join(_part(" ".join(part.split()), () if word_for_word else _OTHER) for part in parts))


def _part(text: str, others: Sequence[tuple[re.Pattern[str], str]]) -> str:
    """Return the pattern of a text in which parts of these kinds may vary."""
    if not others:
        return re.escape(text)
    (kind, pattern), *rest = others
    return pattern.join(_part(between, rest) for between in kind.split(text))
