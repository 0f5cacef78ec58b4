"""Markdown in the formgrader: a learner's answer as text without HTML, everything else as nbconvert shows it."""

from __future__ import annotations

from functools import cache

import mistune
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert import HTMLExporter
from nbgrader.utils import is_solution, is_task

_answer = mistune.create_markdown(escape=True)


@pass_context
def markdown2html(context: Context, source: str) -> str:
    """Return the HTML of a cell's Markdown; replaces nbconvert's filter of that name.

    The formgrader's page runs scripts with the instructor's rights, and nbconvert leaves HTML in Markdown as it is.
    """
    cell = context["cell"]
    if is_solution(cell) or is_task(cell):
        return str(_answer(source))
    return str(_of_the_course().markdown2html(context, source))


@cache
def _of_the_course() -> HTMLExporter:
    return HTMLExporter()  # type: ignore[no-untyped-call]  # nbconvert has no types for it
