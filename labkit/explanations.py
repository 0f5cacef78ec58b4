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
"""In an error's text on the page: whatever varies."""


@dataclass(frozen=True)
class Explanation:
    """One entry: a word of the glossary, or an error with its cause and cure."""

    page: str
    """File name in `docs/`."""
    title: str
    text: str
    """Markdown; links are relative to `docs/`."""
    errors: tuple[str, ...] = ()
    """Lines of the error's text, word for word; empty for a word."""

    def fits(self, error: str) -> bool:
        """Whether all lines of this entry occur in the text of an error."""
        found = " ".join(error.split())
        return bool(self.errors) and all(_pattern(line).search(found) for line in self.errors)


def explain_word(word: str) -> Explanation | None:
    """The entry of a word, a name in a trace such as `isend`, or a type of error; None if there is none."""
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
    """The entry that fits the first of these texts, `TYPE: MESSAGE`, for which there is one; None if there is none."""
    known = entries("troubleshooting.md")
    return next((entry for error in errors for entry in known if entry.fits(error)), None)


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
    found = []
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        block = re.match(r"\n((?:    .*\n)+)", rest)
        lines = tuple(line.strip() for line in block[1].splitlines()) if block else ()
        found.append(Explanation(path.name, title, re.split(r"^## ", rest, flags=re.MULTILINE)[0].strip("\n"), lines))
    return tuple(found)


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "-").replace(" ", "-")


@functools.lru_cache(maxsize=256)
def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(" ".join(part.split())) for part in line.split(VARIES)))
