"""Exercise 22 on a rank, for its checks: hashes, tensors that must be equal, the probe of a link, and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def fingerprints(tensors: list[Tensor], strided: Sequence[int] = ()) -> list[int]:
    """On a rank: return the fingerprint of each tensor; those of `strided` are not contiguous."""
    from labkit.exercises import monitoring

    for place in strided:
        tensors[place] = tensors[place].mT.contiguous().mT
    return [int(monitoring.fingerprint(tensor)) for tensor in tensors]


def compared(values: list[Tensor], grads: list[Tensor], missing: list[int], group: Any = None) -> list[list[Any]]:
    """On a rank: return the alarms about a model with these parameters and gradients, without those `missing`."""
    from labkit.exercises import monitoring

    model = torch.nn.ParameterDict({f"layer{n}": torch.nn.Parameter(value) for n, value in enumerate(values)})
    for place, (parameter, grad) in enumerate(zip(model.values(), grads, strict=True)):
        parameter.grad = None if place in missing else grad
    monitor = monitoring.DistributedTrainingMonitor(dist.get_rank(group), dist.get_world_size(group), group=group)
    return [[alarm.cause, int(alarm.rank), alarm.detail] for alarm in monitor.check_gradient_sync(model)]


def probed(nbytes: int, stride: int) -> float:
    """On a rank: return the time of a message."""
    from labkit.exercises import monitoring

    monitor = monitoring.DistributedTrainingMonitor(dist.get_rank(), dist.get_world_size(), stride=stride)
    dist.barrier()
    return float(monitor.measure_communication_time(nbytes))


def found_outliers(cases: list[Any]) -> list[list[int]]:
    """On a rank: return the outliers of each case: values and a factor."""
    from labkit.exercises import monitoring

    return [[int(rank) for rank in monitoring.outliers(values, factor)] for values, factor in cases]
