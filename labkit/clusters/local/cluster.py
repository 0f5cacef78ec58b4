"""The local cluster: every rank is a real process on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from labkit.clusters import elastic, torchrun
from labkit.clusters.argument_transfer import ArgumentTransfer
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver.client import ForkServer, shared
from labkit.clusters.forkserver.session import Session
from labkit.clusters.job import GpusOrCores, InvalidJob, Job
from labkit.clusters.live import rank as live_rank
from labkit.clusters.live.supervisor import LiveSupervisor
from labkit.clusters.local import machine
from labkit.clusters.local import rank as local_rank
from labkit.clusters.local.network_store import StoreHost
from labkit.clusters.run import Run
from labkit.linux.free_port import free_port

MAX_RANKS = 128
"""Maximum number of ranks: each is a process, connected to every other one."""
_BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class LocalCluster:
    """Processes on this machine, forked from a forkserver that has torch imported; created by `local`."""

    nproc_per_node: int
    nnodes: int
    backend: str | None
    timeout: float | None
    forkserver: ForkServer | None
    lose_node: tuple[float, ...] = ()
    join_node: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        return "local"

    def describe(self) -> str:
        """`local: 2 nodes of 4 processes on this machine`."""
        processes = f"{self.nproc_per_node} process{'es' * (self.nproc_per_node > 1)}"
        nodes = f"{self.nnodes} simulated nodes of {processes} each" if self.nnodes > 1 else processes
        changes = [f"a node is lost after {moment:g} s" for moment in self.lose_node]
        changes += [f"a node joins after {moment:g} s" for moment in self.join_node]
        return f"local: {nodes} on this machine" + "".join(f"; {change}" for change in changes)

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on fresh processes; see `Cluster.run`. Raises `ForkServerDied` if none can be started.

        torch's elastic agents run jobs that may restart their ranks or go on with fewer nodes.
        """
        forkserver, timeout = self.forkserver or shared(), job.timeout or self.timeout
        if job.max_restarts or job.min_nnodes is not None or self.lose_node or self.join_node:
            return self._run_elastic(forkserver, job, timeout, on_output, on_state)
        processes = self._processes(job)
        if not forkserver.shares_files:
            processes["supervisor"] = StoreHost
        if job.call is not None:
            return _call(forkserver, job, on_output=on_output, on_state=on_state, timeout=timeout, **processes)
        forkserver.expect(local_rank.ENTRY, len(processes["ranks"]))
        return forkserver.run(
            local_rank.ENTRY,
            job,
            **processes,
            on_output=on_output,
            on_state=on_state,
            timeout=timeout,
        )

    def prepare(self) -> None:
        """See `PreparableCluster`."""
        (self.forkserver or shared()).expect(local_rank.ENTRY, self.nnodes * self.nproc_per_node)

    def _run_elastic(
        self,
        forkserver: ForkServer,
        job: Job,
        timeout: float | None,
        on_output: OnOutput | None,
        on_state: OnState | None,
    ) -> Run:
        nnodes, nproc_per_node = self._shape(job)
        if job.call is not None:
            raise InvalidJob("a job that calls a function has arguments for each rank: its ranks cannot start again")
        least = nnodes if job.min_nnodes is None else job.min_nnodes
        if least > nnodes:
            raise InvalidJob(f"at least {least} nodes of at most {nnodes} cannot be had")
        return elastic.run(
            forkserver,
            job,
            elastic.Elasticity(nnodes, least, job.max_restarts, self.lose_node, self.join_node),
            options=self._options(job, nnodes * nproc_per_node),
            nproc_per_node=nproc_per_node,
            environments=[{**torchrun.FOR_ALL, **environment} for environment in self._of_nodes(job, nnodes)],
            on_output=on_output,
            on_state=on_state,
            timeout=timeout,
        )

    def keep(self, job: Job, on_state: OnState | None = None) -> tuple[Session, list[list[int]]]:
        """Start live ranks, each in a process of its own, for `labkit.clusters.live`. Raises `ForkServerDied`."""
        forkserver = self.forkserver or shared()
        processes = self._processes(job)
        request = forkserver.prepare(live_rank.ENTRY, job, **processes, commands=True)
        request = replace(request, supervisor=LiveSupervisor)
        return forkserver.open(request), processes["ranks"]

    def threads_per_rank(self, nproc_per_node: int | GpusOrCores) -> int:
        """Default of OMP_NUM_THREADS for ranks of one node."""
        return machine.threads_per_rank(machine.ranks_per_node(nproc_per_node, {}))

    def _shape(self, job: Job) -> tuple[int, int]:
        """Number of nodes, and of ranks on each."""
        nnodes = job.nnodes or self.nnodes
        nproc_per_node = machine.ranks_per_node(job.nproc_per_node or self.nproc_per_node, job.environment)
        _checked_world_size(nnodes, nproc_per_node)
        return nnodes, nproc_per_node

    def _options(self, job: Job, world_size: int) -> dict[str, Any]:
        """The options of rank.py."""
        return {
            "backend": self.backend or "",
            "gpus": machine.gpus(job.environment),
            "world_size": world_size,
            "first_rank": 0,
            "local_world_size": world_size,
            "master": None,
        }

    def _of_nodes(self, job: Job, nnodes: int) -> list[dict[str, str]]:
        """Environment variables of each node's ranks beside torchrun's; the kernel's own environment comes first."""
        nproc_per_node = self._shape(job)[1]
        settings = {
            "OMP_NUM_THREADS": str(machine.threads_per_rank(nnodes * nproc_per_node)),
            # a machine's own name may resolve slowly, or not at all
            "GLOO_SOCKET_IFNAME": "lo",
            # c10d's TCPStore looks up the name of ::ffff:127.0.0.1, on which resolvers can take 5 seconds to give up
            "RES_OPTIONS": "timeout:1",
        }
        gpus = machine.gpus(job.environment)
        if gpus:
            # otherwise NCCL listens on the machine's other interfaces, for everyone
            settings["NCCL_SOCKET_IFNAME"] = "lo"
        common = {name: os.environ.get(name, value) for name, value in settings.items()}
        apart = nnodes > 1 and gpus >= nnodes * nproc_per_node
        return [
            {
                **common,
                **({"CUDA_VISIBLE_DEVICES": machine.gpus_of_node(node, nproc_per_node, gpus)} if apart else {}),
                **job.environment,
            }
            for node in range(nnodes)
        ]

    def _processes(self, job: Job) -> dict[str, Any]:
        """The options of rank.py, and the rank and environment of each process."""
        nnodes, nproc_per_node = self._shape(job)
        world_size = nnodes * nproc_per_node
        if job.call is not None and len(job.arguments) != world_size:
            raise InvalidJob(f"arguments for {len(job.arguments)} ranks, but {world_size} are asked for")
        # the port is for programs that use MASTER_PORT themselves; the lab's own rendezvous needs none
        of_nodes, port = self._of_nodes(job, nnodes), free_port()
        environments = []
        for rank in range(world_size):
            own = torchrun.environment(
                rank,
                nnodes=nnodes,
                nproc_per_node=nproc_per_node,
                master_addr="127.0.0.1",
                master_port=port,
                run_id=f"local-{port}",
            )
            environments.append({**own, **of_nodes[rank // nproc_per_node]})
        options = self._options(job, world_size)
        return {"options": options, "ranks": [[rank] for rank in range(world_size)], "environments": environments}


def local(
    nproc_per_node: int | GpusOrCores = 2,
    nnodes: int = 1,
    *,
    backend: str | None = None,
    timeout: float | None = None,
    lose_node: Sequence[float] = (),
    join_node: Sequence[float] = (),
    forkserver: ForkServer | None = None,
) -> LocalCluster:
    """A cluster of real processes on this machine.

    nproc_per_node: a number, or torchrun's words: `gpu`, `cpu`, `auto`.
    nnodes: more than one are simulated: `LOCAL_RANK` and `GROUP_RANK` are set accordingly, but all run here.
    backend: `gloo` or `nccl`, for `init_process_group()` without one; None: nccl if there is a GPU for each rank.
    timeout: seconds after which a run is stopped, for jobs without their own; None: no limit.
    lose_node: seconds after the start at which a node is lost, as in a power failure; one for each node.
    join_node: seconds after the start at which a node joins; the run starts without these nodes.
    forkserver: forks the processes; the one shared by this program when None.
    Raises `InvalidJob` for an invalid value.
    """
    if isinstance(nproc_per_node, str):
        if nproc_per_node not in get_args(GpusOrCores):
            raise InvalidJob(
                f"nproc_per_node must be a number or one of {', '.join(get_args(GpusOrCores))}, got {nproc_per_node!r}"
            )
        nproc_per_node = machine.ranks_per_node(nproc_per_node, {})
    for name, value in (("nproc_per_node", nproc_per_node), ("nnodes", nnodes)):
        if type(value) is not int or value < 1:
            raise InvalidJob(f"{name} must be a whole number of at least 1, got {value!r}")
    _checked_world_size(nnodes, nproc_per_node)
    if backend is not None and backend not in _BACKENDS:
        raise InvalidJob(f"backend must be one of {', '.join(_BACKENDS)}, got {backend!r}")
    if timeout is not None and not timeout > 0:
        raise InvalidJob(f"timeout must be more than 0 seconds, got {timeout!r}")
    for name, moments in (("lose_node", lose_node), ("join_node", join_node)):
        if not all(moment >= 0 for moment in moments):
            raise InvalidJob(f"{name} must be seconds since the start, 0 or more, got {list(moments)}")
    return LocalCluster(nproc_per_node, nnodes, backend, timeout, forkserver, tuple(lose_node), tuple(join_node))


def _call(forkserver: ForkServer, job: Job, **options: Any) -> Run:
    """Run a call: each rank gets only its own arguments, in memory that is read here when all have ended."""
    transfer = ArgumentTransfer(job)
    pairs = [socket.socketpair() for _ in job.arguments]
    try:
        transfer.send([ours for ours, _ in pairs])
        theirs = [theirs for _, theirs in pairs]
        run = forkserver.run(local_rank.ENTRY, transfer.job, sockets=theirs, **options)
        return transfer.read(run)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
        transfer.close()


def _checked_world_size(nnodes: int, nproc_per_node: int) -> int:
    world_size = nnodes * nproc_per_node
    if world_size > MAX_RANKS:
        raise InvalidJob(
            f"nnodes x nproc_per_node = {world_size} processes on this machine, at most {MAX_RANKS} are possible; "
            "virtual ranks can be more"
        )
    return world_size
