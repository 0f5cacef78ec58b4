"""What each part of solutions.py measures: one piece of work, by a solution and by the library, in turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Beside:
    """One piece of work, done by both. Seconds are medians, where the part says nothing else."""

    work: str
    solution: float
    library: float
    equal: bool
    """Are the values equal?"""
    same_algorithm: bool
    """Then the solution is to take at most 1.1 times the library's time."""

    @property
    def ratio(self) -> float:
        return self.solution / self.library
