"""`labkit mutants`, `labkit variants`: other modules than the solution, for instructors, whole and as diffs."""

from __future__ import annotations

import difflib
import sys
from typing import Literal

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from autograder.mutants.edits import WrongEdit
from autograder.mutants.table import Mutant, Mutants, UnknownName, Variants
from labkit.catalogue import Exercise, find


def main(kind: Literal["mutants", "variants"], what: Literal["show", "diff"], exercise: str, name: str | None) -> int:
    """Print a module, or the list of all without a name; return an exit code. Raises `UnknownExercise`."""
    chosen = find(exercise)
    modules = Mutants(chosen) if kind == "mutants" else Variants(chosen)
    console = Console(highlight=False)
    try:
        if name is None:
            _list(console, chosen, modules)
        else:
            text = modules.text(name) if what == "show" else difference(modules, name)
            _print(console, text, "python" if what == "show" else "diff")
    except (UnknownName, WrongEdit) as problem:
        print(f"labkit: {problem}", file=sys.stderr)
        return 2
    return 0


def difference(modules: Mutants | Variants, name: str) -> str:
    """Return the unified diff of a module against its base."""
    base, text = modules.base(name).splitlines(), modules.text(name).splitlines()
    return "\n".join(difflib.unified_diff(base, text, modules[name].base, name, lineterm="")) + "\n"


def _print(console: Console, text: str, language: str) -> None:
    """Print in colours on a terminal; elsewhere unchanged, for a file or a pipe."""
    if console.is_terminal:
        syntax = Syntax("", language, theme="ansi_dark", background_color="default")
        console.print(syntax.highlight(text.rstrip("\n")), soft_wrap=True)
    else:
        sys.stdout.write(text)


def _list(console: Console, exercise: Exercise, modules: Mutants | Variants) -> None:
    if not modules:
        console.print(f"{exercise.name} has no {modules.kind}s")
        return
    table = Table(title=f"{modules.kind.capitalize()}s of {exercise.name}", title_justify="left")
    for heading in (modules.kind, "what is different", "base"):
        table.add_column(heading, overflow="fold")
    table.add_column("marks", justify="right")
    full = exercise.entry.points
    marks = {name: module.marks if isinstance(module, Mutant) else full for name, module in modules.items()}
    for name in sorted(modules, key=lambda name: -marks[name]):
        base = modules[name].base if modules[name].change else "a whole module"
        table.add_row(name, Text(modules.says(name)), base, f"{marks[name]:g}")
    console.print(table)
