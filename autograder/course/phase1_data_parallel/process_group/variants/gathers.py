"""Right: each rank computes the means from one all_gather, and rank_zero_first has two branches."""

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
    elif (dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size):
        raise ValueError(f"another group stands, got {config}")
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
    if is_main_process(group):
        try:
            yield
        except BaseException:
            barrier(group)
            raise
        barrier(group)
    else:
        barrier(group)
        yield


def all_reduce_metrics(metrics, group=None, *, weight=1.0):
    values = checked(metrics, weight)
    names = sorted(values)
    mine = torch.tensor([weight, *(values[name] for name in names)], dtype=torch.float64)
    everybody = mine[None]
    if dist.is_initialized():
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, mine, group=group)
        everybody = torch.stack(parts)
    everybody = everybody[everybody[:, 0] > 0]
    shares = everybody[:, :1] / everybody[:, 0].sum()
    return dict(zip(names, (shares * everybody[:, 1:]).sum(0).tolist(), strict=True))


def checked(metrics, weight):
    if not weight >= 0:
        raise ValueError(f"weight must be 0 or more, got {weight}")
    for name, value in metrics.items():
        if isinstance(value, str) or (isinstance(value, torch.Tensor) and value.numel() != 1):
            raise ValueError(f"{name} must be one number, got {value!r}"[:200])
    return {name: float(value) for name, value in metrics.items()}
