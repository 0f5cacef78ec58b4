"""Mutants of zero: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS: dict[str, Mutant] = {}
