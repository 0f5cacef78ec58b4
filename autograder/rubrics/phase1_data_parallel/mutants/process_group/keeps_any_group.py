"""A group that stands is kept without a look at the config."""

import os
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

__all__ = [
    "DDPConfig", "all_reduce_metrics", "barrier", "cleanup", "is_main_process", "rank_zero_first", "setup_distributed",
]  # fmt: skip
VARIABLES = {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}


@dataclass(frozen=True)
class DDPConfig:
    backend: str = "gloo"
    init_method: str = "env://"
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True

    @classmethod
    def from_env(cls, **options):
        address = ["MASTER_ADDR", "MASTER_PORT"] if options.get("init_method", "env://") == "env://" else []
        missing = [name for name in (*VARIABLES.values(), *address) if name not in os.environ]
        if missing:
            raise ValueError(f"not set: {', '.join(missing)}")
        fields = {}
        for field, name in VARIABLES.items():
            try:
                fields[field] = int(os.environ[name])
            except ValueError:
                raise ValueError(f"{name} must be a number, got {os.environ[name]!r}") from None
        return cls(**{**fields, **options})


def setup_distributed(config):
    if not dist.is_initialized():
        where = {"init_method": config.init_method, "rank": config.rank, "world_size": config.world_size}
        dist.init_process_group(config.backend, **where)
    return torch.device("cpu")


def cleanup():
    if dist.is_initialized():
        dist.destroy_process_group()


def is_main_process(group=None):
    return not dist.is_initialized() or dist.get_rank(group) == 0


def barrier(group=None):
    if dist.is_initialized():
        dist.barrier(group)


@contextmanager
def rank_zero_first(group=None):
    first = is_main_process(group)
    if not first:
        barrier(group)
    try:
        yield
    finally:
        if first:
            barrier(group)


def all_reduce_metrics(metrics, group=None, *, weight=1.0):
    values = checked(metrics, weight)
    names = sorted(values)
    weighted = [weight * values[name] if weight else 0.0 for name in names]
    sums = torch.tensor([*weighted, weight], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums, group=group)
    return dict(zip(names, (sums[:-1] / sums[-1]).tolist(), strict=True))


def checked(metrics, weight):
    if not weight >= 0:
        raise ValueError(f"weight must be 0 or more, got {weight}")
    for name, value in metrics.items():
        if isinstance(value, str) or (isinstance(value, torch.Tensor) and value.numel() != 1):
            raise ValueError(f"{name} must be one number, got {value!r}"[:200])
    return {name: float(value) for name, value in metrics.items()}
