"""Exercise 09's stages and schedules on a rank, for its checks, and the best split of layers.

split(cases)                        on a rank: the layers of each stage
drawn(cases)                        on a rank: schedules as plain rows
lowest_cost(costs, num_stages)      cost of the most expensive stage in the best split
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

from torch import nn


def split(cases: list[tuple[list[float], int, list[list[int]] | None]]) -> list[list[list[int]]]:
    """On a rank, for each case: return the layer numbers of each stage. A case is the layers' costs and a number of
    stages; or, in place of costs, the sizes of linear layers, to be balanced by their parameters.
    """
    from labkit.exercises import pipeline_parallel

    found = []
    for costs, num_stages, sizes in cases:
        layers: list[nn.Module] = [nn.Linear(a, b) for a, b in sizes] if sizes else [nn.Identity() for _ in costs]
        numbers = {id(layer): number for number, layer in enumerate(layers)}
        stages = pipeline_parallel.split_into_stages(layers, num_stages, None if sizes else costs)
        found.append([[numbers[id(layer)] for layer in stage] for stage in stages])
    return found


def drawn(cases: list[tuple[str, int, int, int]]) -> list[list[list[Any]]]:
    """On a rank: return a schedule for each case of name, ranks, microbatches and chunks, as plain rows of time, rank,
    op, microbatch, chunk."""
    from labkit.exercises import pipeline_parallel

    return [[list(action) for action in pipeline_parallel.get_pipeline_schedule(*case)] for case in cases]


def highest_cost(costs: Sequence[float], ends: Sequence[int]) -> float:
    """Return the highest cost of a stage; stages end before the layers in `ends`, the last one at the end."""
    return max(sum(costs[start:end]) for start, end in pairwise([0, *ends, len(costs)]))


def lowest_cost(costs: Sequence[float], num_stages: int) -> float:
    """Return the highest cost of a stage in the best of all splits."""
    return min(highest_cost(costs, ends) for ends in combinations(range(1, len(costs)), num_stages - 1))
