"""Arguments of local SGD, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.arguments import (
    function,
    integer,
    list_of,
    number,
    positive,
    require,
    shown,
    torch_optimizer,
)
from labkit.course.collective_arguments import group_ranks, require_this_rank


def trained_parameters(name: str, optimizer: Any) -> list[nn.Parameter]:
    """Return the parameters that the optimizer, the argument called `name`, trains: those that require gradients."""
    require(name, optimizer, torch_optimizer)
    trained = [p for entry in optimizer.param_groups for p in entry["params"] if p.requires_grad]
    _require_tensors(f"{name} must have parameters that are trained, floating-point and on one device", trained)
    return trained


def rank_and_size(group: ProcessGroup | None) -> tuple[int, int]:
    """Return this rank in the group, and the group's size."""
    ranks = group_ranks(group)
    return dist.get_rank(group), len(ranks)


def check_period(period: Any, warmup_steps: Any = 0) -> None:
    require("period", period, integer(at_least=1))
    require("warmup_steps", warmup_steps, integer(at_least=0))


def check_weight(name: str, weight: Any, group: ProcessGroup | None) -> None:
    """Check that `weight`, the argument called `name`, is a number from 0, and that this rank is in the group."""
    require_this_rank(group)
    require(name, weight, number(at_least=0))


def check_tensors(tensors: Any) -> list[Tensor]:
    """Return the tensors as a list. Raises `ValueError` unless they are floating-point and on one device."""
    listed = list(tensors) if not isinstance(tensors, Tensor) else [tensors]
    _require_tensors("tensors must be floating-point tensors on one device", listed)
    return listed


def check_outer(outer: Any) -> None:
    require("outer", outer, function("a list of parameters that returns an optimizer, such as a class"))


def check_speeds(speeds: Sequence[float], global_batch_size: int) -> None:
    require("speeds", speeds, list_of("numbers, the speed of each rank"))
    for rank, speed in enumerate(speeds):
        require(f"speeds[{rank}]", speed, positive)
    require("global_batch_size", global_batch_size, integer(at_least=0))


def check_measurement(samples: Any, seconds: Any) -> None:
    require("samples", samples, integer(at_least=0))
    require("seconds", seconds, number(at_least=0))


def _require_tensors(rule: str, tensors: Sequence[Any]) -> None:
    kinds = [f"{t.dtype} on {t.device}" if isinstance(t, Tensor) else shown(t) for t in tensors]
    right = all(isinstance(t, Tensor) and t.is_floating_point() and t.layout == torch.strided for t in tensors)
    if not tensors or not right or len({t.device for t in tensors}) > 1:
        raise ValueError(f"{rule}, got {', '.join(dict.fromkeys(kinds)) or 'none'}")
