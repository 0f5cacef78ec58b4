"""Arguments of `process_group`: how a group is made, and the metrics that its ranks average."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from labkit.course.arguments import Rule, integer, require, shown

_BACKEND = Rule(
    "be one that torch knows, such as gloo or nccl",
    lambda value: value in dist.Backend.backend_list and value != dist.Backend.UNDEFINED,
)
_BUILT = Rule("be one that this torch was built with", lambda value: value != "mpi" or dist.is_mpi_available())
_INIT_METHOD = Rule(
    "begin with env://, tcp:// or file://", lambda value: value.startswith(("env://", "tcp://", "file://"))
)


def require_process_group(backend: str, init_method: str, world_size: int, rank: int, local_rank: int) -> None:
    """Raise `ValueError`, with the argument's name and value, unless a process group can be made of these."""
    require("world_size", world_size, integer(at_least=1))
    require("rank", rank, integer(at_least=0, below=world_size))
    require("local_rank", local_rank, integer(at_least=0, below=world_size))
    require("backend", backend, _BACKEND)
    require("backend", backend, _BUILT)
    require("init_method", init_method, _INIT_METHOD)


def metric_value(name: str, value: float | Tensor) -> float:
    """Return the metric as a float. Raises `ValueError` unless it is a real number or a tensor of one element."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.detach())
    if isinstance(value, (int, float)):
        return float(value)
    raise ValueError(f"metrics[{name!r}] must be a number or a tensor of one element, got {shown(value)}")
