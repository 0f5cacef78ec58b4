"""Mutants of autotune: wrong solutions and their marks."""

from autograder.mutants import Mutant

MUTANTS: dict[str, Mutant] = {}
