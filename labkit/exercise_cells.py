"""What a notebook cell with `%%exercise` means: which exercise, and which text is its module.

The notebook saves that module, the grader judges it, and `labkit launch` sends it to ranks: all three read it here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit import catalogue

MAGIC = "%%exercise"
ALLOWED_ABOVE = ("%%time", "%%capture")
"""Cell magics that may be above `%%exercise`: they run the cell once, in this kernel."""

_Transform = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class ExerciseCell:
    """A cell whose first line, apart from comments, empty lines and other cell magics, is `%%exercise NAME`."""

    exercise: str
    """Full name of the exercise; the written one if the course has none of this name."""
    above: Sequence[str]
    """The cell's lines above the module, `%%exercise` included, without line ends."""
    body: str
    """The module's text as IPython passes it on: without an indentation of the whole cell, and without prompts."""
    refused: str = ""
    """The cell magic above `%%exercise` that may not be there, `%%timeit`; empty if there is none."""

    @property
    def module(self) -> str:
        """The module, whose line k is line k of the cell."""
        return "\n" * len(self.above) + self.body


def read(source: str) -> ExerciseCell | None:
    """Read a cell; None if it defines no exercise."""
    if MAGIC not in source:
        return None
    text = source if source.endswith("\n") else f"{source}\n"
    whole = text.splitlines(keepends=True)
    lines = _cleaned(whole)
    refused = ""
    while lines and lines[0].startswith("%%"):
        magic, _, words = lines[0].rstrip().partition(" ")
        if magic == MAGIC:
            body = "".join(lines[1:])
            above = whole[: len(whole) - len(lines) + 1]
            body = body if source.endswith("\n") else body.removesuffix("\n")
            return ExerciseCell(_exercise(words), tuple(line.rstrip("\r\n") for line in above), body, refused)
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
