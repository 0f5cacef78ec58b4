"""Argument checks of scaling studies. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

from labkit.course.number_arguments import require_integer, require_positive


def check_benchmark(make_workload: Any, steps: Any, warmup: Any, repeats: Any) -> None:
    if make_workload is not None and not callable(make_workload):
        raise ValueError(f"make_workload must be a function of batch_size and group, got {make_workload!r}")
    require_integer("steps", steps, at_least=1)
    require_integer("warmup", warmup, at_least=0)
    require_integer("repeats", repeats, at_least=1)


def check_strategy(strategy: Any, strategies: Iterable[str]) -> None:
    if strategy not in strategies:
        raise ValueError(f"strategy must be one of {', '.join(strategies)}, got {strategy!r}")


def check_study(world_sizes: Any, batch_size: Any) -> None:
    """Check that world sizes are whole numbers that grow."""
    if isinstance(world_sizes, str) or not isinstance(world_sizes, Sequence) or not world_sizes:
        raise ValueError(f"world_sizes must be a list of numbers of ranks, got {world_sizes!r}")
    for world_size in world_sizes:
        require_integer("world_sizes", world_size, at_least=1)
    if list(world_sizes) != sorted(set(world_sizes)):
        raise ValueError(f"world_sizes must grow, got {list(world_sizes)}")
    require_integer("batch_size", batch_size, at_least=1)


def check_global_batch(world_sizes: Sequence[int], global_batch_size: Any) -> None:
    """Check that all ranks get equally many samples, whatever their number."""
    check_study(world_sizes, 1)
    require_integer("global_batch_size", global_batch_size, at_least=1)
    for world_size in world_sizes:
        if global_batch_size % world_size:
            raise ValueError(f"global_batch_size must be a multiple of {world_size} ranks, got {global_batch_size}")


def check_ranks(world_size: int, make_workload: Any) -> None:
    """Check that this can be measured here."""
    if make_workload is None:
        raise ValueError(f"make_workload is None, and nothing is recorded of world_size {world_size}")
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(f"world_size {world_size} is not recorded, and there is no process group to measure it in")
    if world_size > dist.get_world_size():
        raise ValueError(f"world_size must be at most the {dist.get_world_size()} ranks there are, got {world_size}")


def check_epoch(num_samples: Any, dollars_per_gpu_hour: Any) -> None:
    require_integer("num_samples", num_samples, at_least=1)
    if dollars_per_gpu_hour != 0:
        require_positive("dollars_per_gpu_hour", dollars_per_gpu_hour)


def check_format(format: Any, formats: Sequence[str]) -> None:
    if format not in formats:
        raise ValueError(f"format must be one of {', '.join(formats)}, got {format!r}")
