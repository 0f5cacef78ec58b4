"""`%%exercise`, `%reset_exercise`, `%solution`: save, reset and compare the learner's module."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import Code, display

from labkit import catalogue, exercise_cells, exercises
from labkit.catalogue import Exercise
from labkit.checks.guidance import reference, todos
from labkit.clusters.forkserver.client import shared
from labkit.clusters.program import fold_traceback
from labkit.notebook.cells import CellSyntaxError, cell_name, require_syntax, running_cell
from labkit.notebook.magics import Magic, exercise_names
from labkit.notebook.own_exercise import named_or_own, remember

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


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
    ]
    for magic in made:
        magic.option("name", metavar="EXERCISE", help="ring_allreduce, or phase3_multi_node/ring_allreduce")
    solution = Magic("solution", _solution, "Show an exercise's solution, once it is released.", words=exercise_names)
    solution.option(
        "name", nargs="?", metavar="EXERCISE", help="such as ring_allreduce (default: the exercise of this notebook)"
    )
    solution.option("--diff", action="store_true", help="show your module beside it, where they differ")
    return [*made, solution]


def _exercise(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = catalogue.find(options.name)
    above = _lines_above(shell, cell)
    try:
        require_syntax(cell, cell_name(shell), len(above) + 1)
    except CellSyntaxError:
        print("not saved: %check and the ranks still use the last saved version, or the template")
        raise
    # line k of the file is line k of the cell, so that tracebacks match what the learner sees
    text = "".join(f"# {line}\n" if line.strip() else "\n" for line in above) + cell
    path = exercise.save(text)
    remember(shell, exercise)
    module = _imported(shell, exercise, text, path)
    public = [name for name in exercise.public_names if hasattr(module, name)]
    shell.user_ns[exercise.short_name] = module
    shell.user_ns.update({name: getattr(module, name) for name in public})
    missing = [name for name in exercise.public_names if name not in public]
    if gaps := todos.unwritten(exercise, text):
        numbers = sorted({gap.number for gap in gaps if gap.number})
        missing.append(f"the code for TODO {', '.join(map(str, numbers))}" if numbers else "a part of the code")
    print(f"saved as {_shown(path)}; " + (f"still missing: {', '.join(missing)}" if missing else "nothing is missing"))
    print(f"on ranks: from labkit.exercises import {exercise.short_name}")
    shared().start()  # unless it runs already: a check usually follows


def _lines_above(shell: InteractiveShell, cell: str) -> Sequence[str]:
    """Return the running cell's lines above the module. Raises `UsageError` if a magic there may not be there."""
    written = exercise_cells.read(running_cell(shell))
    if written is None or written.body.rstrip() != cell.rstrip():  # run by a program
        return [""]
    if written.refused:
        allowed = " and ".join(exercise_cells.ALLOWED_ABOVE)
        raise UsageError(
            f"not saved: {written.refused} is above {exercise_cells.MAGIC}, where only {allowed} may be. Remove that "
            f"line, and run the cell again"
        )
    return written.above


def _reset(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = catalogue.find(options.name)
    template, _ = exercise.source("template")
    kept = exercise.reset()
    print(f"your version is kept as {_shown(kept)}" if kept else "you had no saved version")
    shell.set_next_input(f"%%exercise {exercise.name}\n{template}")


def _solution(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    exercise = named_or_own(shell, options.name, "%solution")
    released = reference.reference(exercise)
    if released is None:
        raise UsageError(f"the solution of {exercise.name} has not been released")
    if not options.diff:
        display(Code(data=released, language="python"))
        return
    own, _ = exercise.source()
    shown = {
        "text/plain": reference.unified_text(own, released),
        "text/html": reference.side_by_side_html(own, released),
    }
    display(shown, raw=True)


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
