"""The HTML of a figure: what to try, its parts, all runs as a table for readers without scripts, and the recording."""

from __future__ import annotations

import functools
import html
import json
import re
from typing import Any

from labkit.site.figures import buckets, microbatches, skipped_barrier

FIGURES = {"skipped_barrier": skipped_barrier, "buckets": buckets, "microbatches": microbatches}
"""The modules of all figures, by their names."""
MARK = re.compile(r"^<!-- figure: (\w+) -->$", re.MULTILINE)
"""A line of a document in whose place a figure is shown: `<!-- figure: buckets -->`."""


def insert(text: str, path: str) -> str:
    """Return the Markdown of the repository file `path` with its figures, each under a heading of the second level.

    Raises ValueError for a name that is no figure's.
    """
    return MARK.sub(lambda mark: section(mark[1], path), text)


def section(name: str, path: str) -> str:
    """Return a figure with its heading and the text below it, as Markdown of the repository file `path`."""
    if name not in FIGURES:
        raise ValueError(f"{name!r} is no figure; there are {', '.join(FIGURES)}")
    figure = FIGURES[name]
    about = figure.ABOUT.replace("](", f"]({'../' * path.count('/')}")
    return f"## {figure.TITLE}\n\n```{{raw}} html\n{element(name)}\n```\n\n{about}"


@functools.cache
def recorded(name: str) -> Any:
    """The recording of a figure, made once."""
    return FIGURES[name].record()


def element(name: str) -> str:
    """Return the figure as HTML."""
    figure = FIGURES[name]
    # "</script>" cannot occur in it
    data = json.dumps(recorded(name), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            f'<div class="lab-figure {name}" data-figure="{name}" role="group" '
            f'aria-label="{html.escape(figure.TITLE)}">',
            f'<p class="try">{html.escape(figure.TRY)}</p>',
            f'<div class="parts">{figure.parts(recorded(name))}</div>',
            '<p class="status" role="status"></p>',
            _table(name),
            f'<script type="application/json">{data}</script>',
            "</div>",
        ]
    )


def _table(name: str) -> str:
    heading, rows = FIGURES[name].table(recorded(name))
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in heading)
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        '<details><summary>All runs as a table</summary><div class="wide-table" tabindex="0"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )
