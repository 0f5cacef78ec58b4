"""Inputs that are unknown: a range of numbers, or one of several choices. Answers over them are ranges too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Somewhere from `low` to `high`. Both ends are computed: answers are monotone in every number that may be one."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"a range goes from low to high, got {self.low} and {self.high}")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class OneOf(tuple[Any, ...]):
    """One of these; every choice is computed: `OneOf(("none", "full"))`."""

    def __new__(cls, choices: Any) -> OneOf:
        made = super().__new__(cls, choices)
        if not made:
            raise ValueError("OneOf needs a choice or more")
        return made


def corners(value: Any) -> tuple[Any, ...]:
    """What to compute for one input."""
    if isinstance(value, Range):
        return (value.low,) if value.low == value.high else (value.low, value.high)
    return tuple(value) if isinstance(value, OneOf) else (value,)
