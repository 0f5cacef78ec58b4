"""Passages: the cells of a notebook, and the sections of a page in Markdown, each with the address of its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1`*~*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_NAVIGATION = re.compile(r"^.*\]\([^)]*\bHOME\.md\) *(·.*)?$", re.MULTILINE)
"""The line of links to the home and the neighbours, at a notebook's top and end."""
_MARKUP = re.compile(r"\*\*|(?<!\w)\*|\*(?!\w)|`|^[ >|#-]*\|[ |:-]*|\|", re.MULTILINE)


_ONE_MAGIC = re.compile(r"%(?!%).*\s*")
"""A cell such as `%check ring_allreduce`: many have the same, and none says more than the text above it."""


@dataclass(frozen=True)
class Passage:
    """A piece of text that a search finds."""

    title: str
    """Title of the page: its first heading."""
    section: str
    """Heading above the text; the page's title where there is no other."""
    text: str
    """Text without Markdown's marks."""
    path: Path
    place: str
    """Fragment of JupyterLab's address: `cell-id=ID` in a notebook, else the identifier of the heading."""
    begins: bool = True
    """Whether the heading is right above it; if not, other text of the section is between them."""
    code: bool = False


def passages_of(path: Path) -> Iterator[Passage]:
    """The passages of a notebook or of a page. Raises OSError, and ValueError if it is not what its name says."""
    text = path.read_text()
    yield from _of_notebook(path, text) if path.suffix == ".ipynb" else _of_page(path, text)


def heading_id(heading: str) -> str:
    """The identifier that JupyterLab gives to a heading: its text, with hyphens for spaces."""
    return plain(heading).replace(" ", "-")


def plain(markdown: str) -> str:
    """The text without the marks of Markdown; of a link its words remain."""
    return _MARKUP.sub("", _LINK.sub(r"\1", markdown)).strip()


def _of_page(path: Path, text: str) -> Iterator[Passage]:
    title = ""
    for heading, body in _sections(text):
        title = title or heading
        yield Passage(title, heading, plain(body), path, heading_id(heading))


def _of_notebook(path: Path, text: str) -> Iterator[Passage]:
    title = section = ""
    for cell in json.loads(text)["cells"]:
        source, place = "".join(cell["source"]), f"cell-id={cell.get('id', '')}"
        if cell["cell_type"] != "markdown":
            if not _ONE_MAGIC.fullmatch(source):
                yield Passage(title, section, source, path, place, begins=False, code=True)
            continue
        for heading, body in _sections(_NAVIGATION.sub("", source)):
            section = heading or section
            title = title or section
            yield Passage(title, section, plain(body), path, place, begins=bool(heading))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Headings without marks, and the text below each; the first heading is empty where text comes before it."""
    fences = [match.span() for match in _FENCE.finditer(text)]
    heading, begin = "", 0
    for match in _HEADING.finditer(text):
        if any(first <= match.start() < last for first, last in fences):
            continue
        if heading or text[begin : match.start()].strip():
            yield heading, text[begin : match.start()]
        heading, begin = plain(match[1]), match.end()
    if heading or text[begin:].strip():
        yield heading, text[begin:]
