"""Programs for ranks, as an exercise's `scenarios` has them, for `test_used_by.py`."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor


class Doubling:
    """Doubles tensors, and counts them."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        self.calls += 1
        return 2 * tensor


def doubled(tensor: Tensor) -> list[Any]:
    """On a rank: return the largest of doubled tensors, how many were doubled, and whether this module is imported."""
    from labkit.exercises import largest

    double = Doubling()
    return [largest.largest(double(tensor)).tolist(), double.calls, "checks.scenarios" in sys.modules]


def called(tensor: Tensor) -> Any:
    """On a rank: have the exercise call a function that fails."""
    from labkit.exercises import largest

    return largest.largest(tensor, lambda it: it.missing)


def used() -> Any:
    """On a rank: use what the exercise returns."""
    from labkit.exercises import largest

    return largest.largest().rank
