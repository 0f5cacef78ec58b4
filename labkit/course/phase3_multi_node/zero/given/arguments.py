"""Argument checks of ZeRO and FSDP. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks
from labkit.course.number_arguments import require_integer, require_positive


def require_stage(stage: Any, first: int, last: int) -> None:
    """Check that `stage` is one of the stages from `first` to `last`."""
    require_integer("stage", stage, at_least=first, below=last + 1)


def require_memory(num_gpus: Any, stage: Any, state_bytes: Any, **amounts: float) -> None:
    """Check the arguments of an estimate of memory; `amounts` must be above 0."""
    require_integer("num_gpus", num_gpus, at_least=1)
    require_stage(stage, 0, 3)
    if not isinstance(state_bytes, Sequence) or len(state_bytes) != 3:
        raise ValueError(f"state_bytes must be three numbers, got {state_bytes!r}")
    for value in state_bytes:
        if value != 0:  # an optimizer may have no state
            require_positive("state_bytes", value)
    for name, amount in amounts.items():
        require_positive(name, amount)


def require_max_norm(max_norm: Any) -> None:
    """Check that gradients can be clipped to this norm; infinity only measures."""
    if max_norm != float("inf"):
        require_positive("max_norm", max_norm)


def require_module(module: Any, group: ProcessGroup | None, mixed_precision: Any, hybrid: ProcessGroup | None) -> None:
    """Check the arguments of `FullyShardedDataParallel`."""
    own = group_ranks(group)
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if next(module.parameters(), None) is None:
        raise ValueError(f"module must have parameters, got {type(module).__name__} without any")
    if mixed_precision is not None and mixed_precision not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"mixed_precision must be a floating-point dtype or None, got {mixed_precision!r}")
    if hybrid is not None:
        shared = set(own) & set(group_ranks(hybrid))
        if len(shared) != 1:
            raise ValueError(f"hybrid must share only this rank with group, got ranks {sorted(shared)} in both")


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
        if not isinstance(parameter, nn.Parameter):
            raise ValueError(f"params must be parameters of a module, got {type(parameter).__name__}")
    if len(set(every)) < len(every):
        raise ValueError("params must have each parameter once, got one twice")
    if not any(parameter.requires_grad for parameter in every):
        raise ValueError(f"params must have a parameter that is trained, got {len(every)} without one")
    return groups
