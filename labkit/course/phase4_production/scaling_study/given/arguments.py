"""Arguments of scaling studies, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

from labkit.course.arguments import function, integer, list_of, multiple_of, number, one_of, optional, require


def require_benchmark(make_workload: Any, steps: Any, warmup: Any, repeats: Any) -> None:
    require("make_workload", make_workload, optional(function("batch_size and group")))
    require("steps", steps, integer(at_least=1))
    require("warmup", warmup, integer(at_least=0))
    require("repeats", repeats, integer(at_least=1))


def check_strategy(strategy: Any, strategies: Iterable[str]) -> None:
    require("strategy", strategy, one_of(*strategies))


def check_study(world_sizes: Any, batch_size: Any) -> None:
    """Check that world sizes are whole numbers that grow."""
    require("world_sizes", world_sizes, list_of("numbers of ranks"))
    for world_size in world_sizes:
        require("world_sizes", world_size, integer(at_least=1))
    if list(world_sizes) != sorted(set(world_sizes)):
        raise ValueError(f"world_sizes must grow, got {list(world_sizes)}")
    require("batch_size", batch_size, integer(at_least=1))


def check_global_batch(world_sizes: Sequence[int], global_batch_size: Any) -> None:
    """Check that all ranks get equally many samples, whatever their number."""
    check_study(world_sizes, 1)
    require("global_batch_size", global_batch_size, integer(at_least=1))
    for world_size in world_sizes:
        require("global_batch_size", global_batch_size, multiple_of(world_size, "a number of ranks"))


def require_ranks(world_size: int, make_workload: Any) -> None:
    """Check that this can be measured here."""
    if make_workload is None:
        raise ValueError(f"make_workload is None, and nothing is recorded of world_size {world_size}")
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(f"world_size {world_size} is not recorded, and there is no process group to measure it in")
    if world_size > dist.get_world_size():
        raise ValueError(f"world_size must be at most the {dist.get_world_size()} ranks there are, got {world_size}")


def check_epoch(num_samples: Any, dollars_per_gpu_hour: Any) -> None:
    require("num_samples", num_samples, integer(at_least=1))
    require("dollars_per_gpu_hour", dollars_per_gpu_hour, number(at_least=0))


def check_format(format: Any, formats: Sequence[str]) -> None:
    require("format", format, one_of(*formats))
