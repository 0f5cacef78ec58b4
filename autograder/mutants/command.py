"""`labkit mutants`: wrong solutions for instructors, as modules and as diffs to a right one."""

from __future__ import annotations

import difflib
import sys
from typing import Literal

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from autograder.mutants.edits import WrongEdit
from autograder.mutants.table import Mutants, UnknownMutant
from labkit.catalogue import Exercise, find


def main(what: Literal["show", "diff"], exercise: str, name: str | None) -> int:
    """Print a mutant, or the list of mutants without a name; return an exit code. Raises `UnknownExercise`."""
    chosen = find(exercise)
    mutants = Mutants(chosen)
    console = Console(highlight=False)
    try:
        if name is None:
            _list(console, chosen, mutants)
        else:
            text = mutants.text(name) if what == "show" else difference(mutants, name)
            _print(console, text, "python" if what == "show" else "diff")
    except (UnknownMutant, WrongEdit) as problem:
        print(f"labkit: {problem}", file=sys.stderr)
        return 2
    return 0


def difference(mutants: Mutants, name: str) -> str:
    """Return the unified diff of a mutant against its base."""
    base, wrong = mutants.base(name).splitlines(), mutants.text(name).splitlines()
    return "\n".join(difflib.unified_diff(base, wrong, mutants[name].base, name, lineterm="")) + "\n"


def _print(console: Console, text: str, language: str) -> None:
    """Print in colours on a terminal; elsewhere unchanged, for a file or a pipe."""
    if console.is_terminal:
        syntax = Syntax("", language, theme="ansi_dark", background_color="default")
        console.print(syntax.highlight(text.rstrip("\n")), soft_wrap=True)
    else:
        sys.stdout.write(text)


def _list(console: Console, exercise: Exercise, mutants: Mutants) -> None:
    if not mutants:
        console.print(f"{exercise.name} has no mutants")
        return
    table = Table(title=f"Mutants of {exercise.name}", title_justify="left")
    for name in ("mutant", "what is wrong", "base"):
        table.add_column(name, overflow="fold")
    table.add_column("marks", justify="right")
    for name, mutant in sorted(mutants.items(), key=lambda item: -item[1].marks):
        base = mutant.base if mutant.change else "a whole module"
        table.add_row(name, Text(mutants.says(name)), base, f"{mutant.marks:g}")
    console.print(table)
