"""The index: an SQLite full-text table in memory, which follows the files.

Words match in all their forms (`gather`, `gathers`); the last one also as the beginning of a longer word, since it may
still be typed. `all-reduce`, `all_reduce` and `all reduce` are the same.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.catalogue import all_exercises, guides, workspace
from labkit.search.passages import Passage, passages_of

BEGIN, END = "\x02", "\x03"
"""Marks around the matching words of an excerpt."""
_SMALL_WORDS = frozenset((
    *("a", "an", "the", "it", "its", "my", "i", "this", "that", "and", "or", "no", "not", "all"),
    *("are", "be", "been", "can", "do", "does", "has", "have", "is", "was"),
    *("at", "by", "for", "from", "in", "of", "on", "to", "with", "how", "what", "when", "where", "which", "why"),
))  # fmt: skip
"""Words that say nothing of a subject."""
_NOT_GUIDES = ("index.md", "STYLE.md")
"""Pages of `docs/` that are for the site and for contributors."""


@dataclass(frozen=True)
class Hit:
    """One result of a search."""

    passage: Passage
    excerpt: str
    """Excerpt of its text; `BEGIN` and `END` are around the words that match."""

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The excerpt in parts: the text, and whether it matches."""
        pieces = [piece.partition(END) for piece in f"{END}{self.excerpt}".split(BEGIN)]
        pairs = [part for match, _, rest in pieces for part in ((match, True), (rest, False))]
        return [(text, matches) for text, matches in pairs if text]


def files() -> Iterator[Path]:
    """The learner's notebooks, the guides, and the guidelines of the phases, as far as they exist."""
    exercises = all_exercises()
    yield from (workspace() / exercise.notebook_name for exercise in exercises)
    yield from sorted(path for path in guides().glob("*.md") if path.name not in _NOT_GUIDES)
    guidelines = {one.root / "templates" / one.phase / "README.md" for one in exercises}
    yield from sorted(guidelines)


class Index:
    """An index of `files()`. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._indexed: dict[Path, tuple[int, int]] = {}
        """Time and size of each file when it was read."""
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(title, section, text, page UNINDEXED, heading UNINDEXED,"
            " path UNINDEXED, place UNINDEXED, code UNINDEXED, tokenize = 'porter unicode61')"
        )

    def search(self, words: str, limit: int = 12) -> list[Hit]:
        """Return places with all these words, the best first, one of each section, then those with all words that say
        something; if there are none, those with some of them.
        """
        known = [word for word in words.split() if re.search(r"\w\w|\d", word)]  # an "a" is no help
        if not known:
            return []
        telling = [word for word in known if word.lower() not in _SMALL_WORDS] or known
        found: dict[tuple[Path, str], Hit] = {}
        with self._lock:
            self._follow_files()
            for wanted, join in ((known, " AND "), (telling, " AND "), (telling, " OR ")):
                if join == " AND " or not found:
                    for hit in self._matching(join.join(_phrases(wanted)), " ".join(words.split()), limit):
                        found.setdefault((hit.passage.path, hit.passage.section), hit)
        return list(found.values())[:limit]

    def _matching(self, query: str, words: str, limit: int) -> list[Hit]:
        rows = self._database.execute(
            "SELECT page, heading, text, path, place, code, snippet(passages, 2, ?, ?, '…', 24)"
            # a title says what a page is about, and a heading what its section is about; text explains, code repeats
            # whoever searches for words of an error wants its cure
            # whoever types a heading wants its section
            " FROM passages WHERE passages MATCH ? ORDER BY lower(heading) = lower(?) DESC,"
            " bm25(passages, 2.0, 6.0, 1.0) * iif(code, 0.4, 1) * iif(path LIKE '%troubleshooting.md', 1.3, 1)",
            (BEGIN, END, query, words),
        )
        hits: dict[tuple[str, str], Hit] = {}
        for page, heading, text, path, place, code, excerpt in rows:
            passage = Passage(page, heading, text, Path(path), place, code=bool(code))
            hits.setdefault((path, heading), Hit(passage, " ".join(excerpt.split())))
            if len(hits) == limit:
                break
        return list(hits.values())

    def _follow_files(self) -> None:
        stamps = {}
        for path in files():
            with suppress(OSError):
                status = path.stat()
                stamps[path] = status.st_mtime_ns, status.st_size
        for path in [path for path, stamp in self._indexed.items() if stamps.get(path) != stamp]:
            self._database.execute("DELETE FROM passages WHERE path = ?", (str(path),))
            del self._indexed[path]
        for path in [path for path in stamps if path not in self._indexed]:
            with suppress(OSError, ValueError, KeyError, TypeError):  # broken, or being saved: read later
                self._database.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", list(_rows(path)))
                self._indexed[path] = stamps[path]


def _phrases(words: Sequence[str]) -> list[str]:
    """Return the words as SQLite's full-text search takes them; the last one may be the beginning of a longer one."""
    phrases = ['"{}"'.format(word.replace('"', '""')) for word in words]
    return [*phrases[:-1], f"{phrases[-1]}*"]


def _rows(path: Path) -> Iterator[tuple[str, str, str, str, str, str, str, bool]]:
    """A row of the table for each passage. A heading's words count for the first passage below it, so that they lead
    there."""
    for passage in passages_of(path):
        title, section = (passage.title, passage.section) if passage.begins else ("", "")
        yield title, section, passage.text, passage.title, passage.section, str(path), passage.place, passage.code


@functools.cache
def _index() -> Index:
    return Index()


def search(words: str, limit: int = 12) -> list[Hit]:
    """Search with an index that this process keeps; see `Index.search`."""
    return _index().search(words, limit)
