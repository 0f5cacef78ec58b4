"""Arguments of ZeRO and FSDP, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.arguments import (
    instance_of,
    integer,
    list_of,
    number,
    one_of,
    optional,
    positive,
    require,
    torch_module,
)
from labkit.course.collective_arguments import group_ranks

_DTYPES = torch.bfloat16, torch.float16, torch.float32


def require_stage(stage: Any, first: int, last: int) -> None:
    """Check that `stage` is one of the stages from `first` to `last`."""
    require("stage", stage, integer(at_least=first, below=last + 1))


def require_memory(num_gpus: Any, stage: Any, state_bytes: Any, **amounts: float) -> None:
    """Check the arguments of an estimate of memory; `amounts` must be above 0."""
    require("num_gpus", num_gpus, integer(at_least=1))
    require_stage(stage, 0, 3)
    require("state_bytes", state_bytes, list_of("three numbers", length=3))
    for value in state_bytes:
        require("state_bytes", value, number(at_least=0))  # 0: an optimizer may have no state
    for name, amount in amounts.items():
        require(name, amount, positive)


def require_max_norm(max_norm: Any) -> None:
    """Check that gradients can be clipped to this norm; infinity only measures."""
    require("max_norm", max_norm, number(above=0, infinite=True))


def require_module(module: Any, group: ProcessGroup | None, mixed_precision: Any, hybrid: ProcessGroup | None) -> None:
    """Check the arguments of `FullyShardedDataParallel`."""
    own = group_ranks(group)
    require("module", module, torch_module)
    if next(module.parameters(), None) is None:
        raise ValueError(f"module must have parameters, got {type(module).__name__} without any")
    require("mixed_precision", mixed_precision, optional(one_of(*_DTYPES)))
    if hybrid is not None:
        shared = set(own) & set(group_ranks(hybrid))
        if len(shared) != 1:
            raise ValueError(f"hybrid must share only this rank with group, got ranks {sorted(shared)} in both")


def require_shard_ranks(shard_ranks: Any, world_size: int) -> None:
    """Check that the ranks can be cut into groups of so many, each with a whole model in shards; None: one group."""
    require("shard_ranks", shard_ranks, optional(integer(at_least=1)))
    if shard_ranks is not None and world_size % shard_ranks:
        raise ValueError(f"shard_ranks must divide the {world_size} ranks, got {shard_ranks}")


def parameter_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Return `params`, tensors or dicts as any optimizer takes them, as dicts with a list of parameters each."""
    if isinstance(params, Tensor):
        raise ValueError("params must be an iterable of parameters or dicts, got a tensor")
    items = list(params)
    groups = [dict(item) for item in items] if items and isinstance(items[0], dict) else [{"params": items}]
    for group in groups:
        group["params"] = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
    every = [parameter for group in groups for parameter in group["params"]]
    for parameter in every:
        require("params", parameter, instance_of(nn.Parameter, "parameters of a module"))
    if len(set(every)) < len(every):
        raise ValueError("params must have each parameter once, got one twice")
    if not any(parameter.requires_grad for parameter in every):
        raise ValueError(f"params must have a parameter that is trained, got {len(every)} without one")
    return groups
