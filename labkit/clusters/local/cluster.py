"""The local cluster: every rank is a real process of this machine."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.clusters import torchrun
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.job import GpusOrCores, InvalidJob, Job
from labkit.clusters.run import Run
from labkit.clusters.warm import Session, WarmProcess, shared

MAX_RANKS = 128
"""Every rank is a process, and each is connected to each."""
_BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class LocalCluster:
    """Processes of this machine, forked from a warm one that has torch imported; made by `local`."""

    nproc_per_node: int
    nnodes: int
    backend: str | None
    timeout: float | None
    warm: WarmProcess | None

    @property
    def kind(self) -> str:
        return "local"

    def describe(self) -> str:
        """`local: 2 nodes of 4 processes on this machine`."""
        processes = f"{self.nproc_per_node} process{'es' * (self.nproc_per_node > 1)}"
        nodes = f"{self.nnodes} simulated nodes of {processes} each" if self.nnodes > 1 else processes
        return f"local: {nodes} on this machine"

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on fresh processes; see `Cluster.run`. Raises `WarmProcessDied` when none can be started."""
        return (self.warm or shared()).run(
            "labkit.clusters.local.rank:main",
            job,
            **self._processes(job),
            on_output=on_output,
            on_state=on_state,
            timeout=job.timeout or self.timeout,
        )

    def open(self, job: Job, entry: str, supervisor: str) -> Session:
        """Begin a run of `entry` whose processes can be sent something. Raises `WarmProcessDied`."""
        warm = self.warm or shared()
        asked = warm.prepare(entry, job, **self._processes(job), commands=True)
        return warm.open(replace(asked, supervisor=supervisor))

    def _processes(self, job: Job) -> dict[str, Any]:
        """What rank.py wants to know, and which process is which rank, in which environment."""
        nnodes, nproc_per_node = job.nnodes or self.nnodes, _ranks_per_node(job.nproc_per_node or self.nproc_per_node)
        world_size = _checked_world_size(nnodes, nproc_per_node)
        if job.call is not None and len(job.arguments) != world_size:
            raise InvalidJob(f"arguments for {len(job.arguments)} ranks, but {world_size} are asked for")
        gpus = torch.cuda.device_count()
        # torch's own choice is nccl wherever there is any GPU
        backend = self.backend or ("" if gpus >= world_size else "gloo")
        options = {
            "backend": backend,
            "gpus": gpus,
            "world_size": world_size,
            "first_rank": 0,
            "local_world_size": world_size,
            "master": None,
        }
        port = _free_port()
        environments = [
            {**_environment(rank, nnodes, nproc_per_node, port), **job.environment} for rank in range(world_size)
        ]
        return {"options": options, "ranks": [[rank] for rank in range(world_size)], "environments": environments}


def local(
    nproc_per_node: int = 2,
    nnodes: int = 1,
    *,
    backend: str | None = None,
    timeout: float | None = None,
    warm: WarmProcess | None = None,
) -> LocalCluster:
    """A cluster of real processes on this machine.

    nnodes: more than one are simulated: `LOCAL_RANK` and `GROUP_RANK` say so, all run here.
    backend: `gloo` or `nccl`, for `init_process_group()` without one; None: nccl when there is a GPU for each rank.
    timeout: seconds after which a run is stopped, where its job says nothing; None: no limit.
    warm: forks the processes; the one shared by this program when None.
    Raises `InvalidJob` for a value that makes no sense.
    """
    for name, value in (("nproc_per_node", nproc_per_node), ("nnodes", nnodes)):
        if type(value) is not int or value < 1:
            raise InvalidJob(f"{name} must be a whole number of at least 1, got {value!r}")
    _checked_world_size(nnodes, nproc_per_node)
    if backend is not None and backend not in _BACKENDS:
        raise InvalidJob(f"backend must be one of {', '.join(_BACKENDS)}, got {backend!r}")
    if timeout is not None and not timeout > 0:
        raise InvalidJob(f"timeout must be more than 0 seconds, got {timeout!r}")
    return LocalCluster(nproc_per_node, nnodes, backend, timeout, warm)


def _ranks_per_node(asked: int | GpusOrCores) -> int:
    """torchrun's words as a number."""
    if isinstance(asked, int):
        return asked
    gpus = 0 if asked == "cpu" else torch.cuda.device_count()
    if asked == "gpu" and not gpus:
        raise InvalidJob("nproc_per_node=gpu: this machine has no GPU that torch can use")
    return gpus or os.cpu_count() or 1


def _checked_world_size(nnodes: int, nproc_per_node: int) -> int:
    world_size = nnodes * nproc_per_node
    if world_size > MAX_RANKS:
        raise InvalidJob(
            f"nnodes x nproc_per_node = {world_size} processes on this machine, at most {MAX_RANKS} are possible; "
            "virtual ranks can be more"
        )
    return world_size


def _environment(rank: int, nnodes: int, nproc_per_node: int, port: int) -> dict[str, str]:
    """torchrun's variables, and what keeps gloo on this machine."""
    return {
        **torchrun.environment(
            rank,
            nnodes=nnodes,
            nproc_per_node=nproc_per_node,
            master_addr="127.0.0.1",
            master_port=port,
            run_id=f"local-{port}",
        ),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # a machine's own name may resolve slowly, or not at all
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        # c10d's TCPStore looks up the name of ::ffff:127.0.0.1, which can take resolvers 5 seconds to give up on
        "RES_OPTIONS": os.environ.get("RES_OPTIONS", "timeout:1"),
    }


def _free_port() -> int:
    """For programs that use MASTER_PORT themselves; the lab's own rendezvous needs none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
