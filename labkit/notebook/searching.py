"""`%search`: the places in all notebooks and guides with some words, each with an excerpt and a link."""

from __future__ import annotations

import argparse
import html
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from IPython.core.error import UsageError
from IPython.display import display

from labkit.notebook.magics import Magic
from labkit.search import Hit, search

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics() -> list[Magic]:
    """The magic."""
    magic = Magic(
        "search",
        _search,
        """Search all notebooks and guides.

        %search rendezvous
        %search all_reduce latency
        """,
    )
    magic.option("words", nargs="+", metavar="WORD", help="such as deadlock; in all its forms")
    return [magic]


def _search(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    words = " ".join(options.words)
    hits = search(words)
    if not hits:
        raise UsageError(f"%search: no notebook or guide has {words!r}; try another word, or the beginning of one")
    folder = Path.cwd()
    display({"text/html": as_html(hits, folder), "text/plain": as_text(hits, folder)}, raw=True)


def as_html(hits: list[Hit], folder: Path) -> str:
    """A list of links with excerpts; the links hold in a notebook of `folder`."""
    items = []
    for hit in hits:
        address = html.escape(f"{quote(_relative(hit, folder))}#{quote(hit.passage.place, safe='=')}", quote=True)
        excerpt = "".join(
            f"<b>{html.escape(text)}</b>" if matches else html.escape(text) for text, matches in hit.parts
        )
        items.append(f'<li><a href="{address}">{html.escape(_name(hit))}</a><br>{excerpt}</li>')
    return f'<ol class="labkit-hits" style="max-width:60em">{"".join(items)}</ol>'


def as_text(hits: list[Hit], folder: Path) -> str:
    """The same for a terminal."""
    excerpts = ["".join(text for text, _ in hit.parts) for hit in hits]
    pairs = zip(hits, excerpts, strict=True)
    return "\n".join(f"{_name(hit)} ({_relative(hit, folder)})\n    {excerpt}" for hit, excerpt in pairs)


def _name(hit: Hit) -> str:
    title, section = hit.passage.title, hit.passage.section
    return title if section == title else f"{title}: {section}"


def _relative(hit: Hit, folder: Path) -> str:
    return Path(os.path.relpath(hit.passage.path, folder)).as_posix()
