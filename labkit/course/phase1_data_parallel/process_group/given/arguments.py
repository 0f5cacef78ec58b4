"""Argument checks of `process_group`: how a group is made, and the metrics that its ranks average."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def require_process_group(backend: str, init_method: str, world_size: int, rank: int, local_rank: int) -> None:
    """Raise `ValueError`, with the argument's name and value, unless a process group can be made of these."""
    for name, value, least in (("world_size", world_size, 1), ("rank", rank, 0), ("local_rank", local_rank, 0)):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    for name, value in (("rank", rank), ("local_rank", local_rank)):
        if value >= world_size:
            raise ValueError(f"{name} must be below world_size={world_size}, got {value}")
    if backend not in dist.Backend.backend_list or backend == dist.Backend.UNDEFINED:
        raise ValueError(f"backend must be one that torch knows, such as gloo or nccl, got {backend!r}")
    if backend == "mpi" and not dist.is_mpi_available():
        raise ValueError("backend must be one that this torch was built with, got 'mpi'")
    if not init_method.startswith(("env://", "tcp://", "file://")):
        raise ValueError(f"init_method must begin with env://, tcp:// or file://, got {init_method!r}")


def metric_value(name: str, value: float | Tensor) -> float:
    """Return the metric as a float. Raises `ValueError` unless it is a real number or a tensor of one element."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.detach())
    if isinstance(value, (int, float)):
        return float(value)
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
    raise ValueError(f"metrics[{name!r}] must be a number or a tensor of one element, got {shown}")
