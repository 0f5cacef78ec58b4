"""A rank's part of a data set, fixed for the whole training; exercise 03 writes a sampler that reshuffles the parts."""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeVar, cast

from torch.utils.data import Dataset, Subset

Example = TypeVar("Example")


def shard(dataset: Dataset[Example], rank: int, world_size: int) -> Subset[Example]:
    """Return every `world_size`-th example, starting at index `rank`.

    Each example is in exactly one shard; the first shards have one more if the size is not divisible.
    Raises ValueError unless 0 <= rank < world_size.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to world_size - 1 = {world_size - 1}, got {rank}")
    return Subset(dataset, range(rank, len(cast(Sized, dataset)), world_size))
