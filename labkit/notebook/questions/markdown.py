"""The Markdown of short texts as HTML: paragraphs, `code`, **strong**, *emphasis*. Everything else is text."""

from __future__ import annotations

import html
import re

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*\s](?:[^*]*[^*\s])?)\*\*|\*([^*\s](?:[^*]*[^*\s])?)\*")


def as_html(text: str) -> str:
    """Return `text` as HTML, in paragraphs; markup in it is shown as it was typed."""
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    return "".join(f"<p>{inline(part)}</p>" for part in paragraphs)


def inline(text: str) -> str:
    """Return one paragraph as HTML, without its tag."""
    made, at = [], 0
    for match in _INLINE.finditer(text):
        tag, inner = next((tag, one) for tag, one in zip(("code", "strong", "em"), match.groups(), strict=True) if one)
        made += [html.escape(text[at : match.start()]), f"<{tag}>{html.escape(inner)}</{tag}>"]
        at = match.end()
    return "".join([*made, html.escape(text[at:])])
