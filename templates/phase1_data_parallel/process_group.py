"""Start a program on many ranks: who is who, how they meet, and what every training loop needs of them.

Each rank is a process of its own that runs the same program. torchrun starts them and gives each, in environment
variables, its number and the address where all meet (pytorch.org/docs/stable/elastic/run.html). Together they make a
process group (pytorch.org/docs/stable/distributed.html); in it they wait for each other and sum numbers. Without a
group, in a program started by `python` alone, every function here does what is right for a single process.
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

from labkit.course.phase1_data_parallel.process_group.given import launchers
from labkit.course.phase1_data_parallel.process_group.given.arguments import metric_value, require_process_group

__all__ = [
    "DDPConfig", "all_reduce_metrics", "barrier", "cleanup", "is_main_process", "rank_zero_first", "setup_distributed",
]  # fmt: skip

_TORCHRUN = {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
"""The variable that holds each field of `DDPConfig` under torchrun; `launchers` has mpirun's and srun's."""


@dataclass(frozen=True)
class DDPConfig:
    """Who this process is, how it meets the others, and options of data-parallel training.

    Raises ValueError, with the field's name and value, for a field that cannot be used.
    """

    backend: str = "gloo"
    """Library that carries the messages: `gloo` (CPU), `nccl` (GPU), `mpi` if torch was built with it."""
    init_method: str = "env://"
    """Where ranks meet: `env://` (at MASTER_ADDR and MASTER_PORT), `tcp://host:port`, `file:///shared/path`."""
    world_size: int = 1
    """Number of ranks."""
    rank: int = 0
    """Number of this one among all, from 0."""
    local_rank: int = 0
    """Its number among those of its machine, from 0: the GPU that it uses."""
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    """The last three are arguments of `DistributedDataParallel`."""

    def __post_init__(self) -> None:
        require_process_group(self.backend, self.init_method, self.world_size, self.rank, self.local_rank)

    @classmethod
    def from_env(cls, **options: Any) -> DDPConfig:
        """Read RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them, or what mpirun or srun sets in their place.

        options: other fields. Without `backend` it is nccl if each rank of this machine can have a GPU of its own, else
        gloo. With `env://` MASTER_ADDR and MASTER_PORT must be set, too; ranks of srun can do without both.
        Raises ValueError, which names all missing variables and no others, or the one that is no number and its value.
        """
        numbers = launchers.variables_of(_TORCHRUN)
        options = {**launchers.meeting_point(numbers), **options}
        meets_by_env = options.get("init_method", "env://") == "env://" and options.get("backend") != "mpi"
        address = ["MASTER_ADDR", "MASTER_PORT"] if meets_by_env else []

        # TODO 1. Find which variables of `numbers` (its keys are the fields) and `address` are not in os.environ, and
        # raise one ValueError that names them all. Then make `fields`, a dict of rank, world_size and local_rank as
        # whole numbers. Where int() raises ValueError, raise one that names the variable and its text.
        # YOUR CODE HERE
        raise NotImplementedError()

        on_this_machine = launchers.ranks_on_machine() or fields["world_size"]
        backend = "nccl" if torch.cuda.device_count() >= on_this_machine else "gloo"
        return cls(**{"backend": backend, **fields, **options})


def setup_distributed(config: DDPConfig) -> torch.device:
    """Join the process group that `config` describes, and return the device for this rank's tensors.

    Returns when all ranks have called it. The device is a GPU, made the current one, if the backend is nccl; else the
    CPU. A group of this shape that exists already is kept: a notebook's cell may run twice.
    Raises ValueError if the existing group is another one.
    """
    gpu = config.backend == "nccl" and torch.cuda.is_available()
    device = torch.device("cuda", config.local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)

    # TODO 2. If there is no group (dist.is_initialized), make it: dist.init_process_group takes the backend, and by
    # name init_method, rank and world_size. For mpi give the backend alone: MPI itself knows who is who. If there is
    # one, raise ValueError unless its rank and size are the config's.
    # YOUR CODE HERE
    raise NotImplementedError()

    return device


def cleanup() -> None:
    """Leave the process group and end it. Does nothing if there is none, so it may be called twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_main_process(group: ProcessGroup | None = None) -> bool:
    """Return whether this is rank 0 of the group, which prints and saves; True, too, if there is no group at all."""
    return not dist.is_initialized() or dist.get_rank(group) == 0


def barrier(group: ProcessGroup | None = None) -> None:
    """Return when all ranks of the group have called it. Does nothing if there is no group."""
    if dist.is_initialized():
        dist.barrier(group)


@contextmanager
def rank_zero_first(group: ProcessGroup | None = None) -> Iterator[None]:
    """Run the block under `with rank_zero_first():` on rank 0 of the group and, when that has ended, on the others.

    For a download or a cache that the others then find. If the block fails on rank 0, the others still get their turn:
    no rank waits forever. If there is no group, it runs at once.
    """
    # TODO 3. `yield` is where the block runs; before it and after it you can `barrier(group)`. Every rank must come to
    # the barrier once: rank 0 on which side of its yield, the others on which? Does rank 0 come there, too, when the
    # block raises?
    # YOUR CODE HERE
    raise NotImplementedError()


def all_reduce_metrics(
    metrics: Mapping[str, float | Tensor], group: ProcessGroup | None = None, *, weight: float = 1.0
) -> dict[str, float]:
    """Return the mean of each metric over the ranks of the group, the same on all of them, in one collective.

    metrics: by name, numbers or tensors of one element; the same names on every rank, in any order.
    weight: how much this rank counts, such as the number of samples behind its means. A rank of weight 0 adds nothing,
    whatever its metrics are; if all weights are 0, the means are nan.
    Computed in float64. Raises ValueError, before any message is sent, when an argument cannot be used.
    """
    if not (isinstance(weight, (int, float)) and 0 <= weight < float("inf")):
        raise ValueError(f"weight must be a finite number, 0 or more, got {weight!r}")
    values = {name: metric_value(name, metrics[name]) for name in sorted(metrics)}  # sorted: one order on all ranks

    # TODO 4. The mean is sum(weight * value) / sum(weight) over the ranks: two kinds of sums, but one collective. Put
    # all that is to be summed into one float64 tensor on `_device(group)`, all_reduce it if there is a group, and make
    # `means`, by name, of the result. Mind nan * 0.
    # YOUR CODE HERE
    raise NotImplementedError()

    return {name: means[name] for name in metrics}


def _device(group: ProcessGroup | None) -> torch.device:
    """Return the device for the group's tensors: the current GPU with nccl, the CPU with other backends."""
    nccl = dist.is_initialized() and dist.get_backend(group) == "nccl" and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
