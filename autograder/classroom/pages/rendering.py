"""Pages from the templates of this folder: one file each, no scripts, and all text escaped."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDER = Path(__file__).parent
_STYLE = (_FOLDER.parent.parent / "feedback" / "page.css").read_text() + (_FOLDER / "tables.css").read_text()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""HTTP headers of each page."""
FEEDBACK_POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Content-Security-Policy of a feedback page, besides its own: nothing in it may run or load here."""


def utc_minute(moment: float) -> str:
    """Return a Unix time in UTC, to the minute."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}"


_templates = Environment(
    loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)

_templates.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
_templates.filters["utc_minute"] = utc_minute
_templates.filters["number"] = lambda value: f"{round(value, 2):g}"


def page(template: str, **values: Any) -> str:
    """Return the page of a template, by its name without `.html.j2`."""
    return _templates.get_template(f"{template}.html.j2").render(style=_STYLE, **values)
