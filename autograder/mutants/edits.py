"""Edits of a module's text: replaced lines, in the form of a diff.

    What is wrong, in one line.

    - out = reduce_from_group(F.linear(x, self.weight), self.group)
    + out = reduce_from_group(F.linear(x, self.weight, self.bias), self.group)

      total = dist.all_reduce(x)
    + total = total / 2

Each edit is a paragraph. Its lines with `-` and with two spaces must occur together in exactly one place of the module;
its lines with `+` and with two spaces replace them. Indentation is relative: that of the module is added. A `-` or `+`
alone is an empty line. The text before the first edit describes all of them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_OLD, _NEW = "- ", "+ "


class WrongEdit(ValueError):
    """An edit does not fit the text, or is malformed."""


@dataclass(frozen=True)
class Edit:
    """Old and new lines, without their common indentation."""

    old: Sequence[str]
    new: Sequence[str]

    def __call__(self, text: str) -> str:
        """Apply to `text`. Raises `WrongEdit` unless the old lines are there exactly once."""
        lines = text.splitlines()
        places = [at for at in range(len(lines) - len(self.old) + 1) if self._indentation(lines, at) is not None]
        if len(places) != 1:
            occurrences = f"are there {len(places)} times" if places else "are not there"
            old = "\n".join(self.old)
            raise WrongEdit(f"these lines must be there once, and {occurrences}:\n{textwrap.indent(old, '    ')}")
        at = places[0]
        indentation = self._indentation(lines, at)
        new = [f"{indentation}{line}" if line else "" for line in self.new]
        return "\n".join([*lines[:at], *new, *lines[at + len(self.old) :]]) + "\n"

    def _indentation(self, lines: Sequence[str], at: int) -> str | None:
        """Return the indentation of the old lines if they begin at line `at`, else None."""
        indentation = lines[at].removesuffix(self.old[0])
        if indentation.strip() or any(
            line != (f"{indentation}{old}" if old else "")
            for old, line in zip(self.old, lines[at : at + len(self.old)], strict=True)
        ):
            return None
        return indentation


def parsed(text: str) -> tuple[str, list[Edit]]:
    """Return description and edits. Raises `WrongEdit` for a malformed paragraph."""
    paragraphs = [paragraph.splitlines() for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n"))]
    first = next((at for at, lines in enumerate(paragraphs) if _is_edit(lines)), len(paragraphs))
    return "\n\n".join("\n".join(lines) for lines in paragraphs[:first]), [_edit(p) for p in paragraphs[first:]]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Apply `edits` to `text`, one after the other. Raises `WrongEdit`."""
    for edit in edits:
        text = edit(text)
    return text


def _is_edit(lines: Sequence[str]) -> bool:
    return any(f"{line} "[:2] in (_OLD, _NEW) for line in lines)


def _edit(lines: Sequence[str]) -> Edit:
    marked = [f"{line} " if len(line) == 1 else line for line in lines]
    if not _is_edit(lines) or any(line[:2] not in (_OLD, _NEW, "  ") for line in marked):
        raise WrongEdit("each line of an edit begins with '- ', '+ ' or two spaces:\n" + "\n".join(lines))
    code = textwrap.dedent("\n".join(line[2:] for line in marked)).splitlines()
    code += [""] * (len(marked) - len(code))
    pairs = list(zip((line[:2] for line in marked), code, strict=True))
    old = [line for mark, line in pairs if mark != _NEW]
    if not old or not old[0]:
        raise WrongEdit("an edit needs a line of the module, to say where it is made:\n" + "\n".join(lines))
    return Edit(old, [line for mark, line in pairs if mark != _OLD])
