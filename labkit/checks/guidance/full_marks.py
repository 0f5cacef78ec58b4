"""The banner after full marks: the next notebook, and the reference solution beside the learner's module."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape

from labkit.catalogue import Exercise
from labkit.checks.guidance.reference import reference, side_by_side_html


@dataclass(frozen=True)
class Banner:
    """The same message as text and as HTML."""

    text: str
    html: str


def banner(exercise: Exercise) -> Banner:
    """Return the banner for an exercise of which every check passes."""
    text, parts = ["every check passes"], ["<b>Every check passes.</b>"]
    following = exercise.following
    if following is None:
        text.append("this is the last exercise of the course")
        parts.append("This is the last exercise of the course.")
    else:
        link = os.path.relpath(following.notebook_name, exercise.phase)
        name = f"{following.entry.number:02} {following.entry.title}"
        text.append(f"next: {name} ({link})")
        parts.append(f'Next: <a href="{escape(link)}">{escape(name)}</a>.')
    released = reference(exercise)
    below = ""
    if released is not None and exercise.paths["yours"].is_file():
        text.append(f"the reference solution beside yours: %solution {exercise.short_name} --diff")
        table = side_by_side_html(exercise.source("yours")[0], released)
        below = (
            '<details style="margin-top:.4em"><summary style="cursor:pointer">'
            f"The reference solution beside yours</summary>{table}</details>"
        )
    html = (
        '<div role="note" style="max-width:60em;border-left:4px solid #0072b2;padding:.5em 1em;margin:.6em 0;'
        f'background:#0072b214">{" ".join(parts)}{below}</div>'
    )
    return Banner("\n".join(text), html)
