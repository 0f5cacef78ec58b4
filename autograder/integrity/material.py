"""The course's own material on an exercise: its modules, which are ignored, and its forbidden names."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from autograder.mutants import Mutants, Variants
from labkit.catalogue import Exercise
from labkit.text_files import read_text

FORBIDDEN = "FORBIDDEN"


@dataclass(frozen=True)
class Material:
    """One exercise's material."""

    exercise: Exercise
    template: str
    known: tuple[str, ...]
    """All modules of the course for it: template, solution, variants, mutants."""
    forbidden: frozenset[str]
    """Full names that the exercise forbids: `FORBIDDEN` of its hidden rubric."""


def material(exercise: Exercise) -> Material:
    """Read the material. Only the tables of variants and mutants are executed.

    Raises ValueError when `FORBIDDEN` is not a literal set of names, and when a variant or a mutant cannot be made.
    """
    rubric = exercise.folder("autograder") / "rubric.py"
    paths = [exercise.paths["template"], exercise.paths["solution"]]
    texts = {path: read_text(path) for path in paths if path.is_file()}
    others = (Variants(exercise), Mutants(exercise))
    known = (*texts.values(), *(modules.text(name) for modules in others for name in sorted(modules)))
    forbidden = _forbidden(rubric) if rubric.is_file() else frozenset()
    return Material(exercise, texts.get(paths[0], ""), known, forbidden)


def _forbidden(path: Path) -> frozenset[str]:
    for node in ast.parse(read_text(path), str(path)).body:
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if name == FORBIDDEN:
                try:
                    names = frozenset(ast.literal_eval(value)) if value is not None else frozenset()
                except (ValueError, TypeError):
                    names = frozenset([0])
                if not all(isinstance(n, str) and "." in n for n in names):
                    raise ValueError(f"{path}, line {node.lineno}: {FORBIDDEN} must be a set of full names, as texts")
                return names
    return frozenset()
