"""Start a program on many ranks: who is who, how they meet, and the few things that every training loop asks of them.

Each rank is a process of its own that runs the same program. torchrun starts them and tells each, in environment
variables, its number and where to meet the others (pytorch.org/docs/stable/elastic/run.html). Together they make a
process group (pytorch.org/docs/stable/distributed.html); in it they wait for each other and add up numbers. Without a
group, in a program that was started plainly, every function here does what is right for a single process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = [
    "DDPConfig", "all_reduce_metrics", "barrier", "cleanup", "is_main_process", "rank_zero_first", "setup_distributed",
]  # fmt: skip

_TORCHRUN = {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
_OPEN_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
}
"""The variable that each field of `DDPConfig` stands in, under torchrun and under mpirun."""


@dataclass(frozen=True)
class DDPConfig:
    """Who this process is, how it meets the others, and options of data-parallel training.

    Raises ValueError, with the field's name and value, for what cannot be.
    """

    backend: str = "gloo"
    """What carries the messages: `gloo` (CPU), `nccl` (GPU), `mpi` where torch was built with it."""
    init_method: str = "env://"
    """Where ranks meet: `env://` (MASTER_ADDR and MASTER_PORT say it), `tcp://host:port`, `file:///shared/path`."""
    world_size: int = 1
    """How many ranks there are."""
    rank: int = 0
    """This one's number among all, from 0."""
    local_rank: int = 0
    """Its number among those of its own machine: which GPU it takes."""
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    """The last three go to `DistributedDataParallel` as they are."""

    def __post_init__(self) -> None:
        for name, least in (("world_size", 1), ("rank", 0), ("local_rank", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("rank", "local_rank"):
            if getattr(self, name) >= self.world_size:
                raise ValueError(f"{name} must be below world_size={self.world_size}, got {getattr(self, name)}")
        if self.backend not in dist.Backend.backend_list or self.backend == dist.Backend.UNDEFINED:
            raise ValueError(f"backend must be one that torch knows, such as gloo or nccl, got {self.backend!r}")
        if self.backend == "mpi" and not dist.is_mpi_available():
            raise ValueError("backend must be one that this torch was built with, got 'mpi'")
        if not self.init_method.startswith(("env://", "tcp://", "file://")):
            raise ValueError(f"init_method must begin with env://, tcp:// or file://, got {self.init_method!r}")

    @classmethod
    def from_env(cls, **options: Any) -> DDPConfig:
        """What torchrun's environment variables say: RANK, WORLD_SIZE and LOCAL_RANK. Under mpirun, Open MPI's.

        options: other fields. The backend, if it is not among them, is nccl where each rank of this machine can have
        a GPU of its own, else gloo. With `env://` MASTER_ADDR and MASTER_PORT must be there, too.
        Raises ValueError that names all variables that are missing, and no others, or the one that is no number, with
        its value.
        """
        numbers = _OPEN_MPI if "RANK" not in os.environ and _OPEN_MPI["rank"] in os.environ else _TORCHRUN
        meets_by_env = options.get("init_method", "env://") == "env://" and options.get("backend") != "mpi"
        address = ["MASTER_ADDR", "MASTER_PORT"] if meets_by_env else []

        # TODO 1. `numbers` says which variable each field stands in. First look which variables of `numbers` and
        # `address` are not in os.environ, and raise one ValueError that names them all. Then make `fields`, a dict of
        # rank, world_size and local_rank as whole numbers. Where a text is no number (int() raises ValueError), say
        # which variable it stands in, and what it is.
        # YOUR CODE HERE
        raise NotImplementedError()

        sizes = [os.environ[name] for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") if name in os.environ]
        backend = "nccl" if torch.cuda.device_count() >= int(sizes[0] if sizes else fields["world_size"]) else "gloo"
        return cls(**{"backend": backend, **fields, **options})


def setup_distributed(config: DDPConfig) -> torch.device:
    """Join the process group that `config` describes, and return the device for this rank's tensors.

    Returns when all ranks have called it. A GPU, made the current one, where the backend is nccl; else the CPU. Where
    a group of this shape stands already, it is kept: a notebook's cell may run twice.
    Raises ValueError when the group that stands is another one.
    """
    gpu = config.backend == "nccl" and torch.cuda.is_available()
    device = torch.device("cuda", config.local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)

    # TODO 2. Where no group stands (dist.is_initialized), make it: dist.init_process_group takes the backend, and by
    # name init_method, rank and world_size. For mpi give the backend alone: MPI itself knows who is who. Where a group
    # stands, compare its rank and size with the config's.
    # YOUR CODE HERE
    raise NotImplementedError()

    return device


def cleanup() -> None:
    """Leave the process group and end it. Does nothing where there is none, so it may be called twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_main_process(group: ProcessGroup | None = None) -> bool:
    """Is this rank 0 of the group, the one that prints and saves? True, too, where there is no group at all."""
    return not dist.is_initialized() or dist.get_rank(group) == 0


def barrier(group: ProcessGroup | None = None) -> None:
    """Return when all ranks of the group have called it. Does nothing where there is no group."""
    if dist.is_initialized():
        dist.barrier(group)


@contextmanager
def rank_zero_first(group: ProcessGroup | None = None) -> Iterator[None]:
    """The block under `with rank_zero_first():` runs on rank 0 of the group; when that has ended, on the others.

    For a download or a cache that the others then find. When the block fails on rank 0, the others still get their
    turn: nobody waits for ever. Where there is no group it runs at once.
    """
    # TODO 3. `yield` is where the block runs; before it and after it you can `barrier(group)`. Every rank must come to
    # the barrier once: rank 0 on which side of its yield, the others on which? Does rank 0 come there, too, when the
    # block raises?
    # YOUR CODE HERE
    raise NotImplementedError()


def all_reduce_metrics(
    metrics: Mapping[str, float | Tensor], group: ProcessGroup | None = None, *, weight: float = 1.0
) -> dict[str, float]:
    """Mean of each metric over the ranks of the group, the same on all of them, in one collective.

    metrics: by name, numbers or tensors of one element; the same names on every rank, in any order.
    weight: how much this rank counts, such as the number of samples that its means were taken over. A rank of weight 0
    adds nothing, whatever its metrics are; where all are 0 the means are nan.
    Computed in float64. Raises ValueError, before any message, when an argument cannot be used.
    """
    if not (isinstance(weight, (int, float)) and 0 <= weight < float("inf")):
        raise ValueError(f"weight must be a finite number, 0 or more, got {weight!r}")
    values = {name: _number(name, metrics[name]) for name in sorted(metrics)}  # sorted: the same order on every rank

    # TODO 4. The mean is sum(weight * value) / sum(weight) over the ranks: two kinds of sums, but one collective. Put
    # all that is to be added up into one float64 tensor on `_device(group)`, all_reduce it where a group stands, and
    # make `means`, by name, of what comes out. Mind nan * 0.
    # YOUR CODE HERE
    raise NotImplementedError()

    return {name: means[name] for name in metrics}


def _number(name: str, value: float | Tensor) -> float:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.detach())
    if isinstance(value, (int, float)):
        return float(value)
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
    raise ValueError(f"metrics[{name!r}] must be a number or a tensor of one element, got {shown}")


def _device(group: ProcessGroup | None) -> torch.device:
    """Where the group's tensors have to be: nccl sends what is on the current GPU, the others what is on the CPU."""
    nccl = dist.is_initialized() and dist.get_backend(group) == "nccl" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
