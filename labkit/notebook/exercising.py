"""`%%exercise`, `%reset_exercise`, `%solution`: save, reset and compare the learner's module."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import Code, display

from labkit import catalogue, exercises
from labkit.catalogue import Exercise
from labkit.clusters.program import fold_traceback
from labkit.notebook.cells import cell_name, lines_above, require_syntax
from labkit.notebook.magics import Magic, exercise_names

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_MARKERS = re.compile(r"^[ \t]*### (BEGIN|END) SOLUTION[ \t]*\n", re.MULTILINE)


def magics() -> list[Magic]:
    """The three magics."""
    made = [
        Magic(
            "exercise",
            _exercise,
            """Save this cell as the module of an exercise, and import it here and on every rank.

            %%exercise phase3_multi_node/ring_allreduce
            """,
            kind="cell",
            words=exercise_names,
        ),
        Magic(
            "reset_exercise",
            _reset,
            "Start an exercise again from its template. Keeps your version and adds a cell with the template.",
            words=exercise_names,
        ),
        Magic("solution", _solution, "Show an exercise's solution, once it is released.", words=exercise_names),
    ]
    for magic in made:
        magic.option("name", metavar="EXERCISE", help="ring_allreduce, or phase3_multi_node/ring_allreduce")
    return made


_NOT_WRITTEN = "raise NotImplementedError()"
"""nbgrader's replacement for each solution."""


def _exercise(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = catalogue.find(options.name)
    above = lines_above(shell, cell)
    try:
        require_syntax(cell, cell_name(shell), len(above) + 1)
    except SyntaxError:
        print("not saved: %check and the ranks still use the previous version")
        raise
    # line k of the file is line k of the cell, so that tracebacks match what the learner sees
    text = "".join(f"# {line}\n" if line.strip() else "\n" for line in above) + cell
    path = exercise.save(text)
    module = _imported(shell, exercise, text, path)
    public = [name for name in exercise.public_names if hasattr(module, name)]
    shell.user_ns[exercise.short_name] = module
    shell.user_ns.update({name: getattr(module, name) for name in public})
    missing = [name for name in exercise.public_names if name not in public]
    open_parts = text.count(_NOT_WRITTEN)
    if open_parts:
        missing.append(f"the code for {open_parts} TODO{'s' * (open_parts > 1)}")
    print(f"saved as {_shown(path)}; " + (f"still missing: {', '.join(missing)}" if missing else "nothing is missing"))
    print(f"on ranks: from labkit.exercises import {exercise.short_name}")


def _reset(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = catalogue.find(options.name)
    template, _ = exercise.source("template")
    kept = exercise.reset()
    print(f"your version is kept as {_shown(kept)}" if kept else "you had no saved version")
    shell.set_next_input(f"%%exercise {exercise.name}\n{template}")


def _solution(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = catalogue.find(options.name)
    if not exercise.paths["solution"].is_file():
        raise UsageError(f"the solution of {exercise.name} has not been released")
    text, _ = exercise.source("solution")
    display(Code(data=_MARKERS.sub("", text), language="python"))


def _imported(shell: InteractiveShell, exercise: Exercise, text: str, path: Path) -> ModuleType:
    """Run the module in this kernel, like any cell; tracebacks start at the learner's first line."""
    try:
        return exercises.load(exercise, text)
    except Exception as error:
        print(f"saved as {_shown(path)}, but importing it fails:")
        frames = fold_traceback(error.__traceback__)
        lines = shell.InteractiveTB.structured_traceback(type(error), error, frames)
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython looks there
        raise


def _shown(path: Path) -> str:
    """A path for a notebook that others read: relative to the course if possible."""
    for base in (catalogue.root(), Path.cwd()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)
