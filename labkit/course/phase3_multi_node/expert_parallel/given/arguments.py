"""Argument checks of expert parallelism. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks
from labkit.course.number_arguments import require_integer, require_positive
from labkit.course.phase3_multi_node.expert_parallel.given.routing import Journey, Routing


def check_router(width: Any, num_experts: Any, top_k: Any, capacity_factor: Any) -> None:
    """Check the sizes of a router."""
    require_integer("width", width, at_least=1)
    require_integer("num_experts", num_experts, at_least=1)
    require_integer("top_k", top_k, at_least=1, below=num_experts + 1)
    if capacity_factor is not None:
        require_positive("capacity_factor", capacity_factor)


def check_layer(hidden: Any, num_experts: Any, group: ProcessGroup | None) -> range:
    """Check the sizes of a layer; return the numbers of this rank's experts."""
    require_integer("hidden", hidden, at_least=1)
    require_integer("num_experts", num_experts, at_least=1)
    each = num_experts // _check_experts(num_experts, group)
    return range(dist.get_rank(group) * each, (dist.get_rank(group) + 1) * each)


def check_tokens(x: Any, width: int) -> None:
    """Check that x (..., width) may be tokens."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.dim() or x.shape[-1] != width:
        raise ValueError(f"x must be a floating-point tensor with {width} in its last dimension, got {_kind(x)}")


def check_dispatch(x: Any, routing: Any, group: ProcessGroup | None) -> int:
    """Check that `routing` belongs to the tokens x and suits the group; return the group's size."""
    if not isinstance(routing, Routing):
        raise ValueError(f"routing must be what a TopKRouter returns, got {_kind(routing)}")
    if not isinstance(x, Tensor) or x.dim() != 2 or len(x) != len(routing.experts):
        raise ValueError(f"x must be (tokens, width) with the routing's {len(routing.experts)} tokens, got {_kind(x)}")
    return _check_experts(routing.num_experts, group)


def check_combine(outputs: Any, journey: Any) -> None:
    """Check that `outputs` are results for the batches of a dispatch."""
    if not isinstance(journey, Journey):
        raise ValueError(f"journey must be what dispatch returns, got {_kind(journey)}")
    wanted = [sum(rows) for rows in zip(*journey.received, strict=True)]
    if (
        not isinstance(outputs, Sequence)
        or not all(isinstance(rows, Tensor) and rows.dim() == 2 for rows in outputs)
        or [len(rows) for rows in outputs] != wanted
    ):
        kinds = [_kind(rows) for rows in outputs] if isinstance(outputs, Sequence) else _kind(outputs)
        raise ValueError(f"outputs must be a list of (rows, width) with {wanted} rows, got {str(kinds)[:200]}")


def check_average(module: Any, replicas: ProcessGroup | None, group: ProcessGroup | None) -> None:
    """Check the arguments of an average of gradients."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a module, got {_kind(module)}")
    ranks = group_ranks(group)
    if replicas is not None and (dist.get_rank(replicas) < 0 or not set(group_ranks(replicas)) <= set(ranks)):
        raise ValueError(f"replicas must contain this rank, and only ranks of group {ranks}, got {replicas!r}")


def _check_experts(num_experts: int, group: ProcessGroup | None) -> int:
    ranks = len(group_ranks(group))
    if num_experts % ranks:
        raise ValueError(f"num_experts must be a multiple of {ranks}, the ranks of the group, got {num_experts}")
    return ranks


def _kind(x: Any) -> str:
    return f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else repr(x)[:80]
