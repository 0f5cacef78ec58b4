"""Arguments of monitoring, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.arguments import Rule, integer, one_of, optional, positive, require

PARTS = ("communication", "input")
"""Parts of a step that are timed; the rest is compute."""
_LOSS = Rule(
    "be a number, or a tensor of one",
    lambda value: (
        isinstance(value, (int, float, Tensor))
        and not isinstance(value, bool)
        and torch.numel(torch.as_tensor(value)) == 1
    ),
)


def require_monitor(
    rank: Any, world_size: Any, interval: Any, stride: Any, probe_nbytes: Any, group: ProcessGroup | None
) -> None:
    """Check that rank and world_size are those of the group; a world of 1 needs no process group."""
    require("world_size", world_size, integer(at_least=1))
    require("rank", rank, integer(at_least=0, below=world_size))
    require("interval", interval, integer(at_least=1))
    require("stride", stride, integer(at_least=1, below=max(2, world_size)))
    require("probe_nbytes", probe_nbytes, integer(at_least=1))
    joined = dist.is_available() and dist.is_initialized()
    if not joined and world_size > 1:
        raise ValueError(f"world_size must be 1 without a process group, got {world_size}")
    if joined and (rank, world_size) != (dist.get_rank(group), dist.get_world_size(group)):
        own = f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}"
        raise ValueError(f"rank and world_size must be those of the group, {own}, got {rank} of {world_size}")


def require_part(part: Any) -> None:
    require("part", part, one_of(*PARTS))


def check_step(step: Any, loss: Any, samples: Any, memory_bytes: Any = None) -> None:
    require("step", step, integer(at_least=0))
    require("samples", samples, integer(at_least=0))
    require("memory_bytes", memory_bytes, optional(integer(at_least=0)))
    require("loss", loss, _LOSS)


def check_nbytes(nbytes: Any) -> None:
    require("nbytes", nbytes, integer(at_least=1))


def check_baseline(samples_per_second: Any, intervals: Sized) -> None:
    require("samples_per_second", samples_per_second, positive)
    if not intervals:
        raise RuntimeError("there is no throughput yet: the first interval of steps has not ended")
