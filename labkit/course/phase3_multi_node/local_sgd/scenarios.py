"""Programs on ranks of local_sgd's checks: averages, and batches that are balanced by speed."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from torch import Tensor


def averaged(tensors: list[Tensor], weight: float, group: Any = None) -> list[Tensor]:
    """On a rank: average tensors in place; return them."""
    from labkit.exercises import local_sgd

    local_sgd.weighted_average(tensors, weight, group)
    return [tensor.contiguous() for tensor in tensors]


def divided(cases: list[Any]) -> list[list[int]]:
    """On a rank: return the shares of each case: speeds and a batch."""
    from labkit.exercises import local_sgd

    return [[int(share) for share in local_sgd.balance_batches(speeds, batch)] for speeds, batch in cases]


def recorded(records: list[list[list[float]]], group: Any = None) -> list[list[float]]:
    """On a rank: record samples and seconds, then balance anew, several times; return the speeds each time."""
    from labkit.exercises import local_sgd

    balancer, found = local_sgd.BatchBalancer(group), []
    for several in records:
        for samples, seconds in several:
            balancer.record(int(samples), seconds)
        balancer.rebalance()
        found.append([float(speed) for speed in balancer.speeds])
    return found


def paced(batches: list[int], sample: Any, mark: Any) -> list[list[int]]:
    """On a rank: compute its samples of each batch, one by one, and balance anew after each; return its slices."""
    from labkit.exercises import local_sgd

    balancer, found = local_sgd.BatchBalancer(), []
    for batch in batches:
        own = balancer.own(batch)
        mark()
        began = time.perf_counter()
        for _ in range(own.start, own.stop):
            sample()
        balancer.record(own.stop - own.start, time.perf_counter() - began)
        mark()
        dist.barrier()
        balancer.rebalance()
        found.append([int(own.start), int(own.stop)])
    return found
