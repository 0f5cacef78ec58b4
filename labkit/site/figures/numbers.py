"""The figures in large print above a timeline; their places are on the page before the script fills them in."""

from __future__ import annotations

import html
from collections.abc import Sequence


def numbers(names: Sequence[str]) -> str:
    """Return the HTML of a list with these names."""
    entries = "".join(f"<div><dt>{html.escape(name)}</dt><dd>&nbsp;</dd></div>" for name in names)
    return f'<dl class="numbers simple">{entries}</dl>'
