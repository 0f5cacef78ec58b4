"""Other modules for an exercise than its solution, wrong ones and right ones: what is stated of each, and its text."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Self, TypeVar

from autograder.mutants.edits import WrongEdit, edited, parsed
from labkit.catalogue import Exercise
from labkit.text_files import read_text

SOLUTION = "solution"


class UnknownName(KeyError):
    """No mutant or no variant of that name; the message offers the nearest ones."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A module that is stated as edits of a right one, or is a whole module."""

    base: str = SOLUTION
    """Name of the right module that is edited: `SOLUTION`, or a variant."""
    change: str = ""
    """Description and edits, in the form described in edits.py; empty for a whole module."""

    def edited(self, change: str) -> Self:
        """Return a copy with edits. `change`: what is different, then the edits, in the form described in edits.py."""
        return replace(self, change=change)


@dataclass(frozen=True)
class Mutant(Alternative):
    """A wrong solution's marks and the names of the checks that it loses; it keeps all others."""

    marks: float
    loses: Set[str]


@dataclass(frozen=True)
class Variant(Alternative):
    """A right solution, which loses nothing."""


Stated = TypeVar("Stated", bound=Alternative)


class Alternatives(Mapping[str, Stated]):
    """The mutants or the variants of one exercise by name.

    Raises `WrongEdit`, which names the exercise and the module, where an edit does not fit.
    """

    kind: ClassVar[str]
    """What they are called: a mutant's edits are in `MUTANTS` of `mutants.py`, whole modules in `mutants/NAME.py`."""

    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise

    @property
    def path(self) -> Path:
        """Path of the table, beside the exercise's rubric."""
        return self._exercise.folder("autograder") / f"{self.kind}s.py"

    @property
    def folder(self) -> Path:
        """Folder of the whole modules."""
        return self.path.with_suffix("")

    def __getitem__(self, name: str) -> Stated:
        if name not in self._stated:
            near = difflib.get_close_matches(name, self._stated, n=3, cutoff=0.5)
            offer = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(self._stated) or 'none'}"
            raise UnknownName(f"no {self.kind} of {self._exercise.short_name} is called {name!r}; {offer}")
        return self._stated[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stated)

    def __len__(self) -> int:
        return len(self._stated)

    def text(self, name: str) -> str:
        """Return the text of the module."""
        stated = self[name]
        if not stated.change:
            return read_text(self.folder / f"{name}.py")
        base = self.base(name)
        with self._named(name):
            return edited(base, parsed(stated.change)[1])

    def base(self, name: str) -> str:
        """Return the text of the right module that is edited; for a whole module, the solution."""
        base = self[name].base
        if base == SOLUTION:
            return self._exercise.source("solution")[0]
        variants = Variants(self._exercise)
        if base not in variants:
            raise WrongEdit(f"{self._exercise.name}, {self.kind} {name}: no variant is called {base!r}")
        return variants.text(base)

    def says(self, name: str) -> str:
        """Return one line that says what is different from the base."""
        change = self[name].change
        with self._named(name):
            description = parsed(change)[0] if change else ast.get_docstring(ast.parse(self.text(name))) or ""
        return description.partition("\n")[0]

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Prefix the message of `WrongEdit` with exercise and module."""
        try:
            yield
        except WrongEdit as error:
            raise WrongEdit(f"{self._exercise.name}, {self.kind} {name}: {error}") from None

    @cached_property
    def _stated(self) -> Mapping[str, Stated]:
        return self._read()

    def _read(self) -> Mapping[str, Stated]:
        """Return what the table states; empty without a table."""
        if not self.path.is_file():
            return {}
        module = ModuleType(f"{self.kind}s of {self._exercise.name}")
        module.__file__ = str(self.path)
        exec(compile(read_text(self.path), str(self.path), "exec"), module.__dict__)
        table: Mapping[str, Stated] = module.__dict__[f"{self.kind}s".upper()]
        return table


class Mutants(Alternatives[Mutant]):
    """The wrong solutions of one exercise by name. All are listed in its table, which states their marks."""

    kind = "mutant"


class Variants(Alternatives[Variant]):
    """The other right solutions of one exercise, in alphabetical order. The table lists those that are edits."""

    kind = "variant"

    def _read(self) -> Mapping[str, Variant]:
        edits, modules = super()._read(), {path.stem: Variant() for path in self.folder.glob("*.py")}
        if twice := sorted(edits.keys() & modules.keys()):
            raise WrongEdit(f"{self._exercise.name}: {twice[0]} is both in {self.path.name} and a whole module")
        return dict(sorted({**edits, **modules}.items()))
