"""Part of solutions.py: exercise 03's sampler compared with `DistributedSampler`, at the start of an epoch.

A time is from set_epoch to the first index, in one process. Both draw the same permutation. The library then converts
the whole order to Python numbers on each rank; ours converts only the rank's part.
"""

from __future__ import annotations

import statistics
import time
from itertools import islice
from typing import Any

from beside import Beside
from torch.utils.data import DistributedSampler

from labkit import catalogue, exercises

SIZE = 10_000_000
COMPARED = 10_000
"""Number of indices compared, from the start of the second epoch."""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure the start of an epoch on one rank of 1, 4 and 64."""
    exercise = catalogue.find("data_loader")
    data_loader = exercises.load(exercise, exercise.source("solution")[0])
    size = SIZE // 1000 if quick else SIZE
    rows = []
    for num_replicas in (1, 4, 64):
        ours = data_loader.ShardedSampler(size, num_replicas, 0)
        library = DistributedSampler(range(size), num_replicas, 0)
        pairs = [(_begin(ours, epoch), _begin(library, epoch)) for epoch in range(min(repetitions, 5) + 1)][1:]
        (_, mine), (_, theirs) = pairs[0]
        seconds = [statistics.median(pair[k][0] for pair in pairs) for k in (0, 1)]
        work = f"epoch of {size / 1e6:g} million samples begins, rank 0 of {num_replicas}"
        rows.append(Beside(work, *seconds, equal=mine == theirs, same_algorithm=True))
    return rows


def _begin(sampler: Any, epoch: int) -> tuple[float, list[int]]:
    """Return the seconds to the first index, and some more indices."""
    began = time.perf_counter()
    sampler.set_epoch(epoch)
    samples = iter(sampler)
    first = next(samples)
    seconds = time.perf_counter() - began
    return seconds, [first, *islice(samples, COMPARED)]
