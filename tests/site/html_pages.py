"""The site's pages as a reader and a browser see them: links, anchors, text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Page:
    """One page: ids, links of the whole page and of its article, what the browser loads, and its text."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    of_article: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    @cached_property
    def text(self) -> str:
        """Its words, with one space between them."""
        return " ".join("".join(self.parts).split())


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page, self._article, self._depth, self._silent = page, 0, 0, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        if "id" in about:
            self.page.ids.add(about["id"])
        if tag == "a" and "href" in about:
            self.page.links.append(about["href"])
            if self._article:
                self.page.of_article.append(about["href"])
        for name in ("src", "href"):
            if (
                name in about
                and tag in ("script", "img", "link")
                and about.get("rel") not in ("search", "next", "prev")
            ):
                self.page.loaded.append(about[name])
        self._article += tag == "article"
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._article -= tag == "article"
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.page.parts.append(data)


def read_pages(folder: Path) -> dict[Path, Page]:
    """All pages below `folder`, by their paths."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = Page(path)
        reader = _Reader(pages[path])
        reader.feed(path.read_text())
        reader.close()
    return pages


def target(page: Page, link: str) -> tuple[Path, str] | None:
    """The file that a relative link leads to, and its anchor; None for an address elsewhere."""
    if re.match(r"[a-z]+:", link):
        return None
    address, _, anchor = link.partition("#")
    address = unquote(address.partition("?")[0])
    return ((page.path.parent / address).resolve() if address else page.path), unquote(anchor)


def within_clicks(pages: dict[Path, Page], start: Path, clicks: int) -> Iterator[Page]:
    """The pages that one reaches from `start` by at most so many links of articles."""
    found, edge = {start}, {start}
    for _ in range(clicks):
        reached = {there for path in edge for link in pages[path].of_article if (there := _page(pages, path, link))}
        edge = reached - found
        found |= edge
    yield from (pages[path] for path in sorted(found))


def _page(pages: dict[Path, Page], path: Path, link: str) -> Path | None:
    found = target(pages[path], link)
    return found[0] if found is not None and found[0] in pages else None
