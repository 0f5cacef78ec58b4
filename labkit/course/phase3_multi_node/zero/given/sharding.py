"""Base of all stages of ZeRO: the ranks over which parameters are cut, and the flat parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters


class Sharding:
    """Base of `ZeroOptimizer` and `FullyShardedDataParallel`."""

    group: ProcessGroup | None
    hybrid: ProcessGroup | None = None
    """This rank and those that hold the same shards in other groups."""
    ranks: int
    """Size of `group`, over which everything is cut."""
    replicas: int
    """Number of ranks that the mean is over: those of `group`, times those of `hybrid`."""
    flats: Sequence[FlatParameters]
    """All parameters."""
    pending: list[Any]
    """Reductions under way, in the subclass's form."""

    @staticmethod
    def join(tensors: Sequence[Tensor], ranks: int) -> Tensor:
        """Return 1-D tensors one after another, padded with zeros to a multiple of `ranks`."""
        raise NotImplementedError

    def wait_for_gradients(self) -> None:
        """Wait until reductions have ended and their results are the gradients of shards."""
        raise NotImplementedError

    def finish_gradients(self) -> None:
        """Wait until the gradients of all shards are complete."""
        self.wait_for_gradients()
