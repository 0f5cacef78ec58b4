"""What a page says of itself: a description for searches and previews, its icon, and where its text is edited."""

from __future__ import annotations

import functools
import html
import re
from typing import Any

from docutils import nodes

from labkit import repository
from labkit.catalogue import exercises_in, root
from labkit.site import documents
from labkit.site.places import place

PICTURE = "preview/card.png"
"""Picture of a preview, 1200 x 630."""
_LONGEST = 200
"""Letters of a description."""


def describe(page: str, doctree: nodes.document | None, context: dict[str, Any]) -> None:
    """Add to the context of a page's template: tags for its head, and the address at which its source is edited."""
    title = html.unescape(re.sub("<[^>]+>", "", context.get("title") or context["project"]))  # Sphinx has it as HTML
    tags = {"og:type": "website", "og:site_name": context["project"], "og:title": title}
    if description := _description(doctree):
        tags["og:description"] = description
    base = repository.site()
    up = "../" * page.count("/")
    tags["og:image"] = f"{base}/{PICTURE}" if base else f"{up}{PICTURE}"
    if base:
        tags["og:url"] = f"{base}/{page}.html"
    lines = [f'<meta property="{name}" content="{html.escape(text, quote=True)}">' for name, text in tags.items()]
    if description:
        lines.append(f'<meta name="description" content="{html.escape(description, quote=True)}">')
    context["metatags"] = "".join([str(context.get("metatags", "")), *lines])
    if (source := _sources().get(page)) and (edit := repository.edit_address(source)):
        context["theme_source_edit_link"] = edit.replace("{", "{{").replace("}", "}}")


def _description(doctree: nodes.document | None) -> str:
    """The beginning of the page's first paragraph, in whole words."""
    paragraphs = doctree.findall(nodes.paragraph) if doctree is not None else ()
    text = next((" ".join(found.astext().split()) for found in paragraphs if len(found.astext()) > 40), "")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …"


@functools.cache
def _sources() -> dict[str, str]:
    """The repository path of each page that somebody has written."""
    notebooks = [f"notebooks/{exercise.notebook_name}" for exercise in exercises_in(root())]
    return {page: path for path in [*documents.documents(), *notebooks] if (page := place(path))}
