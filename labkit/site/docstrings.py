"""Docstrings as reStructuredText, which Sphinx's autodoc reads. labkit writes them in Markdown's simplest form."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

_CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
_LINK = re.compile(r"\[([^\]]+)\]\((https?://[^)\s]+)\)")
_SPECIAL = re.compile(r"(\\|\*|\||(?<=\w)_(?!\w))")
_ITEM = re.compile(r"(- |\d+\. )")
_PARAMETERS = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")


def restructured(lines: Sequence[str], parameters: Collection[str] = ()) -> list[str]:
    """Convert a docstring: `code`, links, lists, blocks that are indented by four spaces, and lines `NAME: text`.

    parameters: names whose lines become items of a list.
    """
    converted: list[str] = []
    for paragraph in _paragraphs(lines):
        if paragraph[0].startswith("    "):
            converted += ["::", "", *paragraph, ""]
        else:
            converted += [*_text_paragraph(paragraph, parameters), ""]
    return converted


def _paragraphs(lines: Sequence[str]) -> Iterator[list[str]]:
    """Runs of lines; an indented block includes its empty lines."""
    run: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            if run and not run[-1].strip() and not line.startswith("    "):
                yield _stripped(run)
                run = []
            run.append(line)
        elif run and run[0].startswith("    "):
            run.append("")
        elif run:
            yield run
            run = []
    if run:
        yield _stripped(run)


def _stripped(run: list[str]) -> list[str]:
    while not run[-1].strip():
        run.pop()
    return run


def _text_paragraph(paragraph: list[str], parameters: Collection[str]) -> Iterator[str]:
    """Items are set off by empty lines; a line that goes on from the one above is joined to it."""
    item, indent = False, ""
    for line in paragraph:
        words = line.strip()
        if match := _is_parameter(words, parameters):
            yield ""
            yield f"- {', '.join(f'``{name}``' for name in match[1].split(', '))}: {_inline(match[2])}"
            item = True
            indent = "  "
        elif mark := _ITEM.match(words):
            yield ""
            yield mark[1] + _inline(words[len(mark[1]) :])
            item, indent = True, " " * len(mark[1])
        elif item and line[0] == " ":
            yield indent + _inline(words)
        else:
            if item:
                yield ""
                item = False
            yield _inline(words)


def _is_parameter(line: str, parameters: Collection[str]) -> re.Match[str] | None:
    match = _PARAMETERS.match(line)
    names = {name.lstrip("*") for name in match[1].split(", ")} if match else set()
    return match if names and names <= set(parameters) else None


def _inline(line: str) -> str:
    parts = _CODE.split(line)
    converted = ""
    for at, part in enumerate(parts):
        if at % 2:
            before = "\\ " if converted and not converted[-1].isspace() and converted[-1] not in "([{-/" else ""
            after = "\\ " if parts[at + 1][:1].isalnum() else ""
            converted += f"{before}``{part.strip('`')}``{after}"
        else:
            converted += _text(part)
    return converted


def _text(text: str) -> str:
    parts = _LINK.split(text)
    return "".join(
        _SPECIAL.sub(r"\\\1", parts[at]) + (f"`{parts[at + 1]} <{parts[at + 2]}>`__" if at + 2 < len(parts) else "")
        for at in range(0, len(parts), 3)
    )
