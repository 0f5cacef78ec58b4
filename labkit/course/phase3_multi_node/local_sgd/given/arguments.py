"""Argument checks of local SGD. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.collective_arguments import group_ranks
from labkit.course.number_arguments import require_integer, require_positive


def trained_parameters(name: str, optimizer: Any) -> list[nn.Parameter]:
    """Return the parameters that the optimizer, the argument called `name`, trains: those that require gradients."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"{name} must be an optimizer, got {optimizer!r}")
    trained = [p for entry in optimizer.param_groups for p in entry["params"] if p.requires_grad]
    _check_tensors(f"{name} must have parameters that are trained, floating-point and on one device", trained)
    return trained


def rank_and_size(group: ProcessGroup | None) -> tuple[int, int]:
    """Return this rank in the group, and the group's size."""
    ranks = group_ranks(group)
    return dist.get_rank(group), len(ranks)


def check_period(period: Any, warmup_steps: Any = 0) -> None:
    require_integer("period", period, at_least=1)
    require_integer("warmup_steps", warmup_steps, at_least=0)


def check_weight(name: str, weight: Any, group: ProcessGroup | None) -> None:
    """Check that `weight`, the argument called `name`, is a number from 0, and that this rank is in the group."""
    group_ranks(group)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise ValueError(f"{name} must be a number from 0, got {weight!r}")


def check_tensors(tensors: Any) -> list[Tensor]:
    """Return the tensors as a list. Raises `ValueError` unless they are floating-point and on one device."""
    listed = list(tensors) if not isinstance(tensors, Tensor) else [tensors]
    _check_tensors("tensors must be floating-point tensors on one device", listed)
    return listed


def check_outer(outer: Any) -> None:
    if not callable(outer):
        raise ValueError(f"outer must make an optimizer for a list of parameters, such as a class, got {outer!r}")


def check_speeds(speeds: Sequence[float], global_batch_size: int) -> None:
    if not isinstance(speeds, Sequence) or not speeds:
        raise ValueError(f"speeds must be a list with the speed of each rank, got {speeds!r}")
    for rank, speed in enumerate(speeds):
        require_positive(f"speeds[{rank}]", speed)
    require_integer("global_batch_size", global_batch_size, at_least=0)


def check_measurement(samples: Any, seconds: Any) -> None:
    require_integer("samples", samples, at_least=0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be a number from 0, got {seconds!r}")


def _check_tensors(rule: str, tensors: Sequence[Any]) -> None:
    kinds = [f"{t.dtype} on {t.device}" if isinstance(t, Tensor) else repr(t)[:80] for t in tensors]
    right = all(isinstance(t, Tensor) and t.is_floating_point() and t.layout == torch.strided for t in tensors)
    if not tensors or not right or len({t.device for t in tensors}) > 1:
        raise ValueError(f"{rule}, got {', '.join(dict.fromkeys(kinds)) or 'none'}")
