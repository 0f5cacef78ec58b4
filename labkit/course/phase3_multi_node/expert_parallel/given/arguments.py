"""Arguments of expert parallelism, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.arguments import (
    instance_of,
    integer,
    multiple_of,
    optional,
    positive,
    require,
    shown,
    tensor,
    torch_module,
)
from labkit.course.collective_arguments import group_ranks
from labkit.course.phase3_multi_node.expert_parallel.given.routing import Journey, Routing


def check_router(width: Any, num_experts: Any, top_k: Any, capacity_factor: Any) -> None:
    """Check the sizes of a router."""
    require("width", width, integer(at_least=1))
    require("num_experts", num_experts, integer(at_least=1))
    require("top_k", top_k, integer(at_least=1, below=num_experts + 1))
    require("capacity_factor", capacity_factor, optional(positive))


def check_layer(hidden: Any, num_experts: Any, group: ProcessGroup | None) -> range:
    """Check the sizes of a layer; return the numbers of this rank's experts."""
    require("hidden", hidden, integer(at_least=1))
    require("num_experts", num_experts, integer(at_least=1))
    each = num_experts // _check_experts(num_experts, group)
    return range(dist.get_rank(group) * each, (dist.get_rank(group) + 1) * each)


def check_tokens(x: Any, width: int) -> None:
    """Check that x (..., width) may be tokens."""
    require("x", x, tensor((..., width), floating_point=True))


def check_dispatch(x: Any, routing: Any, group: ProcessGroup | None) -> int:
    """Check that `routing` belongs to the tokens x and suits the group; return the group's size."""
    require("routing", routing, instance_of(Routing, "what a TopKRouter returns"))
    require("x", x, tensor((len(routing.experts), "width")))
    return _check_experts(routing.num_experts, group)


def check_combine(outputs: Any, journey: Any) -> None:
    """Check that `outputs` are results for the batches of a dispatch."""
    require("journey", journey, instance_of(Journey, "what dispatch returns"))
    wanted = [sum(rows) for rows in zip(*journey.received, strict=True)]
    if (
        not isinstance(outputs, Sequence)
        or not all(isinstance(rows, Tensor) and rows.dim() == 2 for rows in outputs)
        or [len(rows) for rows in outputs] != wanted
    ):
        raise ValueError(f"outputs must be a list of tensors (rows, width) with {wanted} rows, got {shown(outputs)}")


def check_average(module: Any, replicas: ProcessGroup | None, group: ProcessGroup | None) -> None:
    """Check the arguments of an average of gradients."""
    require("module", module, torch_module)
    ranks = group_ranks(group)
    if replicas is not None and (dist.get_rank(replicas) < 0 or not set(group_ranks(replicas)) <= set(ranks)):
        raise ValueError(f"replicas must contain this rank, and only ranks of group {ranks}, got {replicas!r}")


def _check_experts(num_experts: int, group: ProcessGroup | None) -> int:
    ranks = len(group_ranks(group))
    require("num_experts", num_experts, multiple_of(ranks, "the ranks of the group"))
    return ranks
