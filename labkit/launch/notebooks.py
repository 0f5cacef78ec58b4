"""The programs in a notebook: its `%%torchrun` cells, or else all of its cells as one script."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import catalogue, exercise_cells
from labkit.clusters import Script
from labkit.command_line.commands import CommandError, require_file
from labkit.exercise_cells import CellBelowMagic, ExerciseCell
from labkit.launch.programs import Program

_OF_NOTEBOOK = {"-o": 1, "--output": 1, "--save": 1, "--force": 0, "--print-command": 0}
"""Options of `%%torchrun` that mean nothing at a shell, with their number of values."""
_PYTHON = ("%%time", "%%ranks", "%%capture", "%%timeit")
"""Cell magics whose cells are Python that a script can contain."""
_MAGIC_LINE = re.compile(r"^(\s*)((?:[\w, ]+=\s*)?[%!].*|\?.*|.*\?)$")


@dataclass(frozen=True)
class NotebookProgram:
    """One program of a notebook."""

    program: Program
    title: str
    """`cell 3 of train.ipynb`."""
    options: Sequence[str] = ()
    """Words after `%%torchrun`, as `labkit launch` takes them."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Exercise modules that `%%exercise` cells above define, by exercise name."""
    may_fail: bool = False
    """Whether the cell has the tag `raises-exception`."""


def programs(notebook: Path, arguments: Sequence[str]) -> tuple[list[NotebookProgram], str]:
    """Return a notebook's programs in order, and a note on what is left out. Runs nothing.

    With `%%torchrun` cells, each of them is a program of its own, since ranks see nothing of other cells except the
    modules that `%%exercise` defines. Without any, all Python cells together are one program.
    Raises `CommandError` if the file is not a notebook, or has no cell to run.
    """
    cells = [cell for cell in _cells(notebook) if cell.source.strip()]
    script = Script((str(notebook), *arguments), os.path.dirname(os.path.realpath(notebook)))
    if any(cell.torchrun for cell in cells):
        cells_as_programs = list(_torchrun_cells(notebook, cells, script))
        others = sum(not cell.torchrun and not cell.module for cell in cells)
        return cells_as_programs, f"{others} cells of {notebook} that are not for ranks are left out" if others else ""
    parts = [(cell, _python(cell)) for cell in cells]
    texts = [f"# cell {cell.number} of {notebook.name}\n{text}\n" for cell, text in parts if text is not None]
    if not texts:
        raise CommandError(f"{notebook} has no Python cells")
    others = len(parts) - len(texts)
    program = Program("\n\n".join(texts), f"{notebook.name} as a script", script)
    note = f"{others} cells of {notebook} that are not Python are left out" if others else ""
    return [NotebookProgram(program, str(notebook))], note


@dataclass(frozen=True)
class _Cell:
    number: int
    """Position among the code cells, from 1."""
    source: str
    tags: Sequence[str]

    @property
    def magic(self) -> str:
        """The cell's first magic; empty if it has none."""
        first = self.source.split(maxsplit=1)[0]
        return first if first.startswith("%%") else ""

    @cached_property
    def module(self) -> ExerciseCell | None:
        """The exercise that the cell defines."""
        module = exercise_cells.read(self.source)
        return module if module and module.exercise and not module.refused else None

    @cached_property
    def torchrun(self) -> CellBelowMagic | None:
        """The program for ranks, also below `%%time`; not below `%%timeit`, which runs it several times."""
        program = exercise_cells.find_magic(self.source, "%%torchrun")
        return program if program and not program.refused else None


def _cells(notebook: Path) -> Iterator[_Cell]:
    require_file(notebook)
    try:
        content: Any = json.loads(notebook.read_text(encoding="utf-8"))
        code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(code, 1):
            tags = cell.get("metadata", {}).get("tags", [])
            yield _Cell(number, "".join(cell["source"]).lstrip("\n"), tags)
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{notebook} is not a notebook: {type(error).__name__}: {error}") from None


def _torchrun_cells(notebook: Path, cells: Sequence[_Cell], script: Script) -> Iterator[NotebookProgram]:
    modules: dict[str, str] = {}
    for cell in cells:
        if cell.module:
            modules[catalogue.find(cell.module.exercise).name] = cell.module.module
        elif cell.torchrun:
            first_line = 1 + len(cell.torchrun.above)
            program = Program(cell.torchrun.body, f"{notebook.name} cell {cell.number}", script, first_line=first_line)
            yield NotebookProgram(
                program,
                title=f"cell {cell.number} of {notebook}",
                options=_for_shell(shlex.split(cell.torchrun.words, comments=True)),
                modules=dict(modules),
                may_fail="raises-exception" in cell.tags,
            )


def _for_shell(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skipped = 0
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if skipped:
            skipped -= 1
        elif name in _OF_NOTEBOOK:
            skipped = 0 if equals else _OF_NOTEBOOK[name]
        else:
            kept.append(word)
    return kept


def _python(cell: _Cell) -> str | None:
    """A cell's text as Python, without magics; None if it is in another language."""
    if cell.magic and cell.magic not in _PYTHON:
        return None
    lines = (f"# {cell.source}" if cell.magic else cell.source).split("\n")
    # a line that begins with % is Python within a longer expression or a text: only lines that do not parse are magics
    while (number := _line_of_error("\n".join(lines))) and _MAGIC_LINE.match(lines[number - 1]):
        lines[number - 1] = _MAGIC_LINE.sub(r"\1pass  # \2", lines[number - 1])
    return "\n".join(lines)


def _line_of_error(text: str) -> int:
    """Line of the first error of syntax, from 1; 0 if there is none."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return min(error.lineno or 0, text.count("\n") + 1)
    except ValueError:  # null bytes
        return 0
    return 0
