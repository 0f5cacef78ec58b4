"""Numbers among an exercise's arguments, checked before any message is sent."""

from __future__ import annotations

import math
from typing import Any


def require_integer(name: str, value: Any, *, at_least: int, below: int | None = None) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, is an int, not a bool, within the limits."""
    if type(value) is not int or value < at_least or (below is not None and value >= below):
        limits = f"an integer from {at_least}" + ("" if below is None else f" to {below - 1}")
        raise ValueError(f"{name} must be {limits}, got {value!r}")


def require_positive(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
        raise ValueError(f"{name} must be a number above 0, got {value!r}")
