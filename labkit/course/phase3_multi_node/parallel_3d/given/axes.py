"""Axes of a mesh of ranks, and its sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import ProcessGroup

from labkit.course.arguments import integer, require


class Coordinates(NamedTuple):
    """A rank's place on each axis, or the size of each axis."""

    dp: int
    """Data parallelism: which part of the batch."""
    pp: int
    """Pipeline parallelism: which stages."""
    tp: int
    """Tensor parallelism: which part of every layer."""


AXES = Coordinates._fields


class MeshSizes:
    """Base of `Mesh`: as many ranks as there are in the job, along three axes.

    Raises `ValueError` unless dp, pp and tp are integers from 1 up whose product is the number of ranks.
    """

    def __init__(self, dp: int, pp: int, tp: int) -> None:
        for name, size in zip(AXES, (dp, pp, tp), strict=True):
            require(name, size, integer(at_least=1))
        ranks = dist.get_world_size()
        if dp * pp * tp != ranks:
            raise ValueError(f"dp * pp * tp must be {ranks}, the number of ranks, got {dp} * {pp} * {tp}")
        self.sizes = Coordinates(dp, pp, tp)
        """Number of ranks along each axis."""
        self.rank = dist.get_rank()
        """This rank."""
        self.groups: dict[str, ProcessGroup] = {}
        """This rank's group along each axis, "dp", "pp" and "tp"; "ends" on the first and last ranks of a pipeline."""

    def __repr__(self) -> str:
        return f"Mesh(dp={self.sizes.dp}, pp={self.sizes.pp}, tp={self.sizes.tp})"
