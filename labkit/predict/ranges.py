"""Unknown inputs: a range of numbers, or one of several choices. Answers over them are ranges too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`.

    For integers, such as microbatches, answers need not be monotone, so every value is computed (64 evenly spaced ones
    if there are more); for other numbers, both ends.
    """

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
    """One of several values, `OneOf(("none", "full"))`; every choice is computed."""

    def __new__(cls, choices: Any) -> OneOf:
        made = super().__new__(cls, choices)
        if not made:
            raise ValueError("OneOf needs a choice or more")
        return made


def corners(value: Any) -> tuple[Any, ...]:
    """Values to compute for one input."""
    if isinstance(value, Range) and isinstance(value.low, int) and isinstance(value.high, int):
        step = max(1, (value.high - value.low) / 63)
        drawn = (value.low + round(index * step) for index in range(64))
        return tuple(number for number in drawn if number <= value.high)
    if isinstance(value, Range):
        return (value.low,) if value.low == value.high else (value.low, value.high)
    return tuple(value) if isinstance(value, OneOf) else (value,)
