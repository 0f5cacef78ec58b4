"""Links from words to the glossary: each of its terms, where a page has it first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from docutils import nodes
from sphinx.application import Sphinx

from labkit.catalogue import root

PAGE = "glossary"
ORDINARY = {
    "agent",
    "check",
    "cluster",
    "compute",
    "engine",
    "job",
    "release",
    "run",
    "scheduler",
    "template",
    "variant",
}
"""Terms that are also ordinary words, which most sentences use in their ordinary sense: they are not linked."""
NOT_IN = (nodes.title, nodes.literal, nodes.literal_block, nodes.reference, nodes.raw, nodes.math, nodes.math_block)
"""Nodes whose words are not linked."""
WITHOUT = ("reference/", PAGE, "course-map", "index")
"""Beginnings of pages without such links: docstrings, the glossary itself, and pages that are links themselves."""


@cache
def terms() -> dict[str, str]:
    """Each term as it is written in a text, and the anchor of its entry."""
    anchors = {}
    for title in re.findall(r"^### (.+)$", (root() / "docs" / "glossary.md").read_text(), re.MULTILINE):
        for term in title.split(", "):
            if term not in ORDINARY:
                anchors[term] = nodes.make_id(title)
    return anchors


@cache
def _pattern() -> re.Pattern[str]:
    longest_first = sorted(terms(), key=len, reverse=True)
    written = [re.escape(term) if _is_name(term) else f"(?i:{re.escape(term)}s?)" for term in longest_first]
    return re.compile(rf"(?<![\w/.-])(?:{'|'.join(written)})(?![\w/-])")


def _is_name(term: str) -> bool:
    """`DDP` and `ZeRO` have their letters; `all-reduce` may begin a sentence."""
    return term != term.lower()


def _term(word: str) -> str:
    for candidate in (word, word.lower(), word.lower().removesuffix("s")):
        if candidate in terms():
            return candidate
    raise LookupError(word)


def link_terms(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Link the first occurrence of each term on the page. Called by Sphinx before it writes a page."""
    if page.startswith(WITHOUT):
        return
    address = app.builder.get_relative_uri(page, PAGE)
    seen: set[str] = set()
    for text in list(doctree.findall(nodes.Text)):
        if _is_prose(text) and (parts := list(_linked(text, address, seen))):
            text.parent.replace(text, parts)


def _is_prose(text: nodes.Text) -> bool:
    node = text.parent
    while node is not None:
        if isinstance(node, NOT_IN) or {"cell_output", "toctree-wrapper"} & set(node.get("classes", ())):
            return False
        node = node.parent
    return text.parent is not None


def _linked(text: nodes.Text, address: str, seen: set[str]) -> Iterator[nodes.Node]:
    """The text in parts, terms of which are links; nothing if no term is in it for the first time."""
    words, at = text.astext(), 0
    for match in _pattern().finditer(words):
        term = _term(match[0])
        if terms()[term] in seen:
            continue
        seen.add(terms()[term])
        yield nodes.Text(words[at : match.start()])
        uri = f"{address}#{terms()[term]}"
        yield nodes.reference("", match[0], internal=True, refuri=uri, classes=["glossary-term"])
        at = match.end()
    if at:
        yield nodes.Text(words[at:])
