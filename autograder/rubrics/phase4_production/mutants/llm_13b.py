"""Mutants of llm_13b: wrong solutions and their marks. TODO(author): six or more, one for each likely mistake."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "sends_twice": Mutant(2, loses={"traffic"}).edited("""
        A second collective, whose result is thrown away.

          dist.all_reduce(tensor)
        + dist.all_reduce(tensor.clone())
    """),
}
