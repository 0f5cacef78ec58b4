"""Result of each part of solutions.py: one piece of work, done alternately by a solution and by the library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Beside:
    """One piece of work, done by both. Seconds are medians unless the part states otherwise."""

    work: str
    solution: float
    library: float
    equal: bool
    """Whether the values are equal."""
    same_algorithm: bool
    """Whether both use the same algorithm; then the solution may take at most `target` times the library's time."""
    target: float = 1.1

    @property
    def ratio(self) -> float:
        return self.solution / self.library
