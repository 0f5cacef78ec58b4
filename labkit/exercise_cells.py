"""What a notebook cell with `%%exercise` means: which exercise, and which text is its module.

The notebook saves that module, the grader judges it, and `labkit launch` sends it to ranks: all three read it here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from labkit import catalogue

MAGIC = "%%exercise"
ALLOWED_ABOVE = ("%%time", "%%capture")
"""Cell magics that may be above another one: they run the cell once, in this kernel."""

_Transform = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class CellBelowMagic:
    """A cell that has a certain cell magic, as its first one or below others."""

    words: str
    """What is written after the magic."""
    above: Sequence[str]
    """The cell's lines above its body, the magic's included, without line ends."""
    body: str
    """The text as IPython passes it on: without an indentation of the whole cell, and without prompts."""
    refused: str = ""
    """The first cell magic above that is not one of `ALLOWED_ABOVE`; empty if there is none."""


class ExerciseCell(CellBelowMagic):
    """A cell whose first line, apart from comments, empty lines and other cell magics, is `%%exercise NAME`."""

    @cached_property
    def exercise(self) -> str:
        """Full name of the exercise; the written one if the course has none of this name."""
        return _exercise(self.words)

    @property
    def module(self) -> str:
        """The module, whose line k is line k of the cell."""
        return "\n" * len(self.above) + self.body


def read(source: str) -> ExerciseCell | None:
    """Read a cell; None if it defines no exercise."""
    found = find_magic(source, MAGIC)
    return ExerciseCell(found.words, found.above, found.body, found.refused) if found else None


def find_magic(source: str, name: str) -> CellBelowMagic | None:
    """Find the cell magic `name`, such as `%%torchrun`; None if the cell does not have it where IPython looks."""
    if name not in source:
        return None
    text = source if source.endswith("\n") else f"{source}\n"
    whole = text.splitlines(keepends=True)
    lines = _cleaned(whole)
    refused = ""
    while lines and lines[0].startswith("%%"):
        magic, _, words = lines[0].rstrip().partition(" ")
        if magic == name:
            body = "".join(lines[1:])
            above = whole[: len(whole) - len(lines) + 1]
            body = body if source.endswith("\n") else body.removesuffix("\n")
            return CellBelowMagic(words, tuple(line.rstrip("\r\n") for line in above), body, refused)
        refused = refused or ("" if magic in ALLOWED_ABOVE else magic)
        lines = _cleaned(lines[1:])
    return None


def without_comments_above(lines: list[str]) -> list[str]:
    """Remove comments and empty lines above `%%exercise`: a transformation of cells for IPython, which allows none."""
    code = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    is_exercise = any(line.startswith(MAGIC) for line in lines[code:]) and lines[code].startswith("%%")
    return lines[code:] if is_exercise else lines


def _cleaned(lines: list[str]) -> list[str]:
    """Do what IPython does with a cell before it looks for a magic; lines are removed only at the beginning."""
    from IPython.core.inputtransformer2 import TransformerManager

    ipythons: list[_Transform] = TransformerManager().cleanup_transforms  # type: ignore[assignment]  # of objects
    for transform in (*ipythons, without_comments_above):
        lines = transform(lines)
    return lines


def _exercise(words: str) -> str:
    try:
        name = next(iter(shlex.split(words, comments=True)), "")
    except ValueError:  # an unclosed quotation mark
        return ""
    known = (exercise.name for exercise in catalogue.all_exercises() if name in (exercise.name, exercise.short_name))
    return next(known, name)
