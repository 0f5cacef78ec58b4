"""The mutants of an exercise: their stated marks and their text."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

from autograder.mutants.edits import WrongEdit, edited, parsed
from labkit.catalogue import Exercise

SOLUTION = "solution"


class UnknownMutant(KeyError):
    """No mutant of that name; the message offers the nearest ones."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Mutant:
    """A wrong solution's marks and the names of the checks that it loses; it keeps all others."""

    marks: float
    loses: Set[str]
    base: str = SOLUTION
    """Name of the right module that is edited: `SOLUTION`, or a variant."""
    change: str = ""
    """Description and edits, in the form described in edits.py; empty for a whole module."""

    def edited(self, change: str) -> Mutant:
        """Return a copy with edits. `change`: what is wrong, then the edits, in the form described in edits.py."""
        return replace(self, change=change)


class Mutants(Mapping[str, Mutant]):
    """The mutants of one exercise by name, as listed in the table beside its rubric.

    Raises `WrongEdit`, which names exercise and mutant, where an edit does not fit.
    """

    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise

    @property
    def path(self) -> Path:
        """Path of the table."""
        return self._exercise.folder("autograder") / "mutants.py"

    @property
    def folder(self) -> Path:
        """Folder of the whole modules."""
        return self.path.with_suffix("")

    def __getitem__(self, name: str) -> Mutant:
        if name not in self._table:
            near = difflib.get_close_matches(name, self._table, n=3, cutoff=0.5)
            offer = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(self._table) or 'none'}"
            raise UnknownMutant(f"no mutant of {self._exercise.short_name} is called {name!r}; {offer}")
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def text(self, name: str) -> str:
        """Return the text of the module."""
        mutant = self[name]
        if not mutant.change:
            return (self.folder / f"{name}.py").read_text()
        base = self.base(name)
        with self._named(name):
            return edited(base, parsed(mutant.change)[1])

    def base(self, name: str) -> str:
        """Return the text of the right module that is edited; for a whole module, the solution."""
        base = self[name].base
        if base == SOLUTION:
            return self._exercise.source("solution")[0]
        path = self._exercise.folder("autograder") / "variants" / f"{base}.py"
        if not path.is_file():
            raise WrongEdit(f"{self._exercise.name}, mutant {name}: no variant is called {base!r}")
        return path.read_text()

    def says(self, name: str) -> str:
        """Return one line that says what is wrong."""
        change = self[name].change
        with self._named(name):
            description = parsed(change)[0] if change else ast.get_docstring(ast.parse(self.text(name))) or ""
        return description.partition("\n")[0]

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Prefix the message of `WrongEdit` with exercise and mutant."""
        try:
            yield
        except WrongEdit as error:
            raise WrongEdit(f"{self._exercise.name}, mutant {name}: {error}") from None

    @cached_property
    def _table(self) -> Mapping[str, Mutant]:
        if not self.path.is_file():
            return {}
        module = ModuleType(f"mutants of {self._exercise.name}")
        module.__file__ = str(self.path)
        exec(compile(self.path.read_text(), str(self.path), "exec"), module.__dict__)
        table: Mapping[str, Mutant] = module.__dict__["MUTANTS"]
        return table
