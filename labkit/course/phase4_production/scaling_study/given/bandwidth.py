"""Bus bandwidth of collectives on the ranks of a benchmark, as NVIDIA's nccl-tests define it.

Bytes of the message over seconds, times 2(n-1)/n for an all-reduce and (n-1)/n for an all-gather and a reduce-scatter
of n ranks: the rate at which each rank must send, the same for all n if a network is as fast for each.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.phase4_production.scaling_study.given.benchmark import Benchmark
from labkit.torch_versions.collectives import all_gather_single, reduce_scatter_single

MESSAGE_NBYTES = 1 << 24
"""About the bytes of a message: a large one, for which latency does not count."""


def bus_bandwidths(benchmark: Benchmark, nbytes: int = MESSAGE_NBYTES) -> dict[str, float]:
    """Return the bus bandwidth of each collective of all ranks, in 1e9 bytes per second. All ranks call this.

    It is timed as the benchmark's steps are. One rank has no bandwidth: the result is empty.
    """
    ranks = dist.get_world_size()
    if ranks == 1:
        return {}
    part = torch.zeros(max(1, nbytes // 4 // ranks), device=benchmark.device)
    whole = torch.zeros(ranks * len(part), device=benchmark.device)
    calls: dict[str, tuple[float, Callable[[], Any]]] = {
        "all_reduce": (2, lambda: dist.all_reduce(whole)),
        "all_gather": (1, lambda: all_gather_single(whole, part)),
        "reduce_scatter": (1, lambda: reduce_scatter_single(part, whole)),
    }
    sent = (ranks - 1) / ranks * whole.nbytes / 1e9
    return {name: times * sent / median(benchmark.time_steps(call, None)) for name, (times, call) in calls.items()}
