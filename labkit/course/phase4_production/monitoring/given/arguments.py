"""Argument checks of monitoring. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.number_arguments import require_integer, require_positive

PARTS = ("communication", "input")
"""Parts of a step that are timed; the rest is compute."""


def check_monitor(
    rank: Any, world_size: Any, interval: Any, stride: Any, probe_nbytes: Any, group: ProcessGroup | None
) -> None:
    """Check that rank and world_size are those of the group; a world of 1 needs no process group."""
    require_integer("world_size", world_size, at_least=1)
    require_integer("rank", rank, at_least=0, below=world_size)
    require_integer("interval", interval, at_least=1)
    require_integer("stride", stride, at_least=1, below=max(2, world_size))
    require_integer("probe_nbytes", probe_nbytes, at_least=1)
    joined = dist.is_available() and dist.is_initialized()
    if not joined and world_size > 1:
        raise ValueError(f"world_size must be 1 without a process group, got {world_size}")
    if joined and (rank, world_size) != (dist.get_rank(group), dist.get_world_size(group)):
        own = f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}"
        raise ValueError(f"rank and world_size must be those of the group, {own}, got {rank} of {world_size}")


def check_part(part: Any) -> None:
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")


def check_step(step: Any, loss: Any, samples: Any, memory_bytes: Any = None) -> None:
    require_integer("step", step, at_least=0)
    require_integer("samples", samples, at_least=0)
    if memory_bytes is not None:
        require_integer("memory_bytes", memory_bytes, at_least=0)
    if isinstance(loss, bool) or not isinstance(loss, (int, float, Tensor)) or torch.numel(torch.as_tensor(loss)) != 1:
        raise ValueError(f"loss must be a number, or a tensor of one, got {loss!r}")


def check_nbytes(nbytes: Any) -> None:
    require_integer("nbytes", nbytes, at_least=1)


def check_baseline(samples_per_second: Any, intervals: Sized) -> None:
    require_positive("samples_per_second", samples_per_second)
    if not intervals:
        raise RuntimeError("there is no throughput yet: the first interval of steps has not ended")
