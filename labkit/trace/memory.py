"""Memory of the ranks over time, by category."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple


class Category(StrEnum):
    """Purpose of a part of a rank's memory."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    OPTIMIZER = "optimizer state"
    ACTIVATION = "activations"
    COMMUNICATION = "communication"
    OTHER = "other"


class MemorySample(NamedTuple):
    """From `time` on, `rank` holds `nbytes` for `category`, until the next sample of the same rank and category.

    Samples of one rank are sorted by time. If one moment has several, decreases come first, so the sum over the
    categories after each sample is never above the rank's true total.
    """

    rank: int
    """Global rank."""
    time: float
    """Seconds since the job began, on the trace's clock."""
    category: Category
    nbytes: int


def peak(samples: Iterable[MemorySample]) -> dict[Category, int]:
    """A rank's memory by category when it held the most; the first such moment. `samples`: those of the rank."""
    held = dict.fromkeys(Category, 0)
    highest, at_peak = 0, dict(held)
    for sample in samples:
        held[sample.category] = sample.nbytes
        total = sum(held.values())
        if total > highest:
            highest, at_peak = total, dict(held)
    return at_peak


def samples_since(samples: Iterable[MemorySample], moments: Mapping[int, float]) -> tuple[MemorySample, ...]:
    """Each rank's samples from its moment on, preceded by what it held at that moment."""
    held: dict[tuple[int, Category], MemorySample] = {}
    later = []
    for sample in samples:
        moment = moments.get(sample.rank)
        if moment is None or sample.time >= moment:
            later.append(sample)
        else:
            held[sample.rank, sample.category] = sample._replace(time=moment)
    return (*held.values(), *later)


def samples_from(rows: Iterable[Sequence[object]]) -> tuple[MemorySample, ...]:
    """Samples from rows of plain values, in the order of the fields. Raises ValueError on an unknown category."""
    return tuple(MemorySample(row[0], row[1], Category(row[2]), row[3]) for row in rows)  # type: ignore[arg-type]  # plain values of the right types, checked by who read them
