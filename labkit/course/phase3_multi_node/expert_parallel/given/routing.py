"""Where tokens go: a router's decisions, and the record of a dispatch until the results are combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Routing:
    """The experts of each token."""

    experts: Tensor
    """(tokens, top_k) of int64: numbers of the chosen experts, in the whole group."""
    weights: Tensor
    """(tokens, top_k) of float32 or wider: weight of each of them in the token's output."""
    kept: Tensor
    """(tokens, top_k) of bool: False if the choice is dropped, since its expert is full."""
    loss: Tensor
    """Load-balancing loss, a scalar."""
    num_experts: int
    """Number of experts in the whole group."""

    @property
    def counts(self) -> Tensor:
        """(num_experts,) of int64: kept choices of each expert."""
        counts = torch.zeros(self.num_experts, dtype=torch.int64, device=self.experts.device)
        return counts.scatter_add_(0, self.experts.flatten(), self.kept.flatten().to(counts.dtype))

    @property
    def dropped(self) -> Tensor:
        """Number of dropped choices, a scalar of int64."""
        return (~self.kept).sum()


@dataclass(frozen=True)
class Journey:
    """Record of a dispatch, by which `combine` brings rows back to their tokens."""

    routing: Routing
    order: Tensor
    """(rows,) of int64: the choice of each row that was sent, `token * top_k + choice`."""
    arrival: Tensor
    """(received rows,) of int64: for each row of all batches, one after the other, its place among those received."""
    sent: list[list[int]]
    """Rows sent to each rank's experts: `sent[rank][expert]`."""
    received: list[list[int]]
    """Rows received from each rank for this rank's experts: `received[rank][expert]`."""
    group: ProcessGroup | None
