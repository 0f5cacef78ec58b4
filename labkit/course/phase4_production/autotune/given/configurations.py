"""Search spaces: choices and intervals by name, and configurations drawn from them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True)
class Uniform:
    """A number from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"an interval goes from low to a higher number, got {self.low!r} and {self.high!r}")

    def draw(self, draws: random.Random) -> float:
        return draws.uniform(self.low, self.high)


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A number from `low` to `high`, above 0; each power of ten is equally likely, as suits a learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ValueError(f"a logarithmic interval begins above 0, got {self.low!r}")

    def draw(self, draws: random.Random) -> float:
        return math.exp(draws.uniform(math.log(self.low), math.log(self.high)))


Space = Mapping[str, Sequence[Any] | Uniform]
"""For each name a list of choices, or an interval."""


def number_of_configurations(space: Space) -> float:
    """Return the number of different configurations; infinite if there is an interval."""
    return math.prod(math.inf if isinstance(values, Uniform) else len(values) for values in space.values())


def configurations(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    """Draw `count` different configurations, or all in random order if there are no more.

    The same seed gives the same ones. Python's and torch's global random numbers are neither used nor changed.
    """
    draws = random.Random(seed)
    if number_of_configurations(space) <= count:
        choices = (values for values in space.values() if not isinstance(values, Uniform))
        every = [dict(zip(space, chosen, strict=True)) for chosen in product(*choices)]
        draws.shuffle(every)
        return every
    drawn: list[dict[str, Any]] = []
    while len(drawn) < count:
        candidate = {
            name: values.draw(draws) if isinstance(values, Uniform) else draws.choice(values)
            for name, values in space.items()
        }
        if candidate not in drawn:
            drawn.append(candidate)
    return drawn
