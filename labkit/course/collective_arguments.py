"""Arguments of a collective, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from labkit.course.arguments import Rule, require

_CONTIGUOUS = Rule(
    "be a contiguous tensor",
    lambda value: isinstance(value, Tensor) and value.layout == torch.strided and value.is_contiguous(),
)


def require_this_rank(group: ProcessGroup | None) -> None:
    """Raise `ValueError` unless this rank is in `group`."""
    require("group", group, Rule(f"contain this rank, {dist.get_rank()}", lambda value: dist.get_rank(value) >= 0))


def group_ranks(group: ProcessGroup | None) -> list[int]:
    """Return the global ranks of `group` in their order. Raises `ValueError` unless this rank is one of them."""
    require_this_rank(group)
    return dist.get_process_group_ranks(group)


def require_member(name: str, rank: int, ranks: list[int]) -> None:
    """Raise `ValueError` unless `rank`, the argument called `name`, is one of `ranks`."""
    require(name, rank, Rule(f"be one of the group's ranks, {ranks}", lambda value: value in ranks))


def contiguous(name: str, tensor: Tensor) -> Tensor:
    """Return `tensor` detached: the same memory, written without a trace in the autograd graph.

    Raises `ValueError`, which calls the argument `name`, unless it is a contiguous tensor.
    """
    require(name, tensor, _CONTIGUOUS)
    return tensor.detach()


def combining(op: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the function that combines two tensors by `op`; for AVG it adds, and the caller divides at the end.

    Raises `ValueError` unless `op` is SUM, AVG, MAX, MIN or PRODUCT and is defined for `dtype`.
    """
    known: dict[Any, Callable[..., Tensor]] = {ReduceOp.SUM: torch.add, ReduceOp.PRODUCT: torch.mul}
    if dtype.is_floating_point or dtype.is_complex:
        known[ReduceOp.AVG] = torch.add
    if not dtype.is_complex:
        known |= {ReduceOp.MAX: torch.maximum, ReduceOp.MIN: torch.minimum}
    require("op", op, Rule(f"be SUM, AVG, MAX, MIN or PRODUCT, one that suits {dtype}", lambda value: value in known))
    return known[op]
