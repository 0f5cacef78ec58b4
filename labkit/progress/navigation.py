"""Title and links of each notebook: previous, home, guide, next, at its top and end, as the catalogue orders them."""

from __future__ import annotations

import os.path
import re

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from labkit.catalogue import Exercise, exercises_in, root
from labkit.progress.home import HOME

_GUIDE = "docs/guide.md"
"""The guide that takes the exercises in the order in which one needs them; relative to the course."""
_LINKS = re.compile(rf"^.*\]\(\.\./{re.escape(HOME)}\).*$", re.MULTILINE)
"""The line of links in a cell."""


def navigate(notebook: NotebookNode, exercise: Exercise) -> list[tuple[str, str]]:
    """Write title and links into a notebook's first and last cell; return the old and new text of changed cells.

    A first or last cell that is not Markdown gets a new one beside it.
    """
    if not notebook.cells or notebook.cells[0].cell_type != "markdown":
        notebook.cells.insert(0, new_markdown_cell("", id=f"{exercise.short_name}-title"))
    if notebook.cells[-1].cell_type != "markdown" or len(notebook.cells) == 1:
        notebook.cells.append(new_markdown_cell("", id=f"{exercise.short_name}-way-on"))
    line = _links(exercise)
    changed = []
    for cell, text in (
        (notebook.cells[0], _head(notebook.cells[0].source, exercise.label, line)),
        (notebook.cells[-1], f"{_without_links(notebook.cells[-1].source)}\n\n{line}".lstrip()),
    ):
        if cell.source != text:
            changed.append((cell.source, text))
            cell.source = text
    return changed


def _head(text: str, label: str, line: str) -> str:
    title, _, rest = _without_links(text).partition("\n")
    if not title.startswith("# "):
        title, rest = "", f"{title}\n{rest}"
    return f"# {label}\n\n{line}\n\n{rest.strip()}".rstrip()


def _without_links(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", _LINKS.sub("", text)).rstrip()


def _links(exercise: Exercise) -> str:
    """`[← 01 · Process groups](...) · [course home](../HOME.md) · [guide](...) · [03 · Loading data →](...)`."""
    course = exercises_in(exercise.root)
    at = course.index(exercise)
    parts = [f"[← {neighbour.label}]({_address(exercise, neighbour)})" for neighbour in course[max(at - 1, 0) : at]]
    parts.append(f"[course home](../{HOME})")
    if (root() / _GUIDE).is_file():
        parts.append(f"[guide](../../{_GUIDE})")
    parts += [f"[{neighbour.label} →]({_address(exercise, neighbour)})" for neighbour in course[at + 1 : at + 2]]
    return " · ".join(parts)


def _address(start: Exercise, to: Exercise) -> str:
    """Relative, so that it holds in the workspace, in a release and on a web page."""
    return os.path.relpath(to.notebook_name, start.phase)
