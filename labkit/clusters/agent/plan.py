"""A job's description for every node. Each node works out its own ranks and their environment from it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.clusters import torchrun
from labkit.clusters.agent.interface import interface_to, own_address
from labkit.clusters.elastic.node import Node
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.forkserver.entry import Entry
from labkit.clusters.forkserver.request import Request, RunSupervisor
from labkit.clusters.job import Job
from labkit.clusters.run_store import StoreAddress
from labkit.linux.clock import Clock


@dataclass(frozen=True)
class LaunchPlan:
    """One job on `nnodes` nodes, of `nproc_per_node` ranks each. Pickled; it comes from the learner's own notebook."""

    run: str
    """Name of the run, which distinguishes its lines from those of others."""
    entry: Entry
    """Where each process begins."""
    job: Job
    nnodes: int
    nproc_per_node: int
    master_addr: str = "127.0.0.1"
    """Address of node 0 for the others: an address, or a name that all can look up."""
    master_port: int = 0
    """Port of the store of node 0's agent; 0 if there is only one node."""
    secret: bytes = field(default=b"", repr=False)
    """Secret of that store."""
    backend: str | None = None
    """Backend for `init_process_group()` without one; None: nccl if every rank of the node has a GPU."""
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for every rank, beside torchrun's."""
    commands: bool = False
    """See `Request.commands`."""
    supervisor: Callable[[socket.socket, Request], RunSupervisor] | None = None
    """See `Request.supervisor`."""
    folder: str | None = None
    """Working directory, on nodes that have it: the notebook's, if the file system is shared."""
    path: Sequence[str] | None = None
    """`sys.path`, likewise; None: the agent's own."""
    clock: Clock = time.monotonic
    """See `Request.clock`."""

    @property
    def elastic(self) -> bool:
        """Whether ranks may restart, or the job may go on with fewer nodes. torch's elastic agents then run it."""
        return bool(self.job.max_restarts) or self.job.min_nnodes is not None

    @property
    def min_nnodes(self) -> int:
        """Minimum number of nodes for the job to go on."""
        return self.nnodes if self.job.min_nnodes is None else self.job.min_nnodes

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def ranks(self, node: int) -> list[list[int]]:
        """The global ranks of a node's processes."""
        first = node * self.nproc_per_node
        return [[rank] for rank in range(first, first + self.nproc_per_node)]

    def request(self, node: int, gpus: int, forkserver: ForkServer) -> Request:
        """The request of node `node`, with `gpus` GPUs, to its own forkserver."""
        options: dict[str, Any] = {
            "backend": self.backend or "",
            "gpus": gpus,
            "world_size": self.world_size,
            "first_rank": node * self.nproc_per_node,
            "local_world_size": self.nproc_per_node,
            "master": self._store_address(),
        }
        if self.elastic:
            # its agent assigns the ranks; it has a process too, the last one
            count = self.nproc_per_node + 1
            options["elastic"] = self._elastic()
            ranks: list[list[int]] = [[]] * count
            environments = [{**self._between(), **torchrun.FOR_ALL, **self.environment, **self.job.environment}] * count
        else:
            ranks = self.ranks(node)
            environments = [self._environment(rank) for (rank,) in ranks]
        prepared = forkserver.prepare(
            self.entry,
            self.job,
            options=options,
            ranks=ranks,
            environments=environments,
            timeout=self.timeout,
            commands=self.commands,
            supervisor=Node if self.elastic else self.supervisor,
        )
        folder = self.folder if self.folder is not None and os.path.isdir(self.folder) else prepared.folder
        path = prepared.path if self.path is None else self.path
        return replace(prepared, folder=folder, path=path, clock=self.clock)

    def _store_address(self) -> StoreAddress | None:
        if not self.master_port:
            return None
        return StoreAddress(self.master_addr, self.master_port, self.secret, self.run)

    def _elastic(self) -> dict[str, Any]:
        """Options for labkit.clusters.elastic.agent."""
        return {
            "min_nnodes": self.min_nnodes,
            "nnodes": self.nnodes,
            "nodes_at_start": self.nnodes,
            "nproc_per_node": self.nproc_per_node,
            "max_restarts": self.job.max_restarts,
            "run_id": self.run,
            "address": own_address(self.master_addr),
        }

    def _between(self) -> dict[str, str]:
        """Environment variables for ranks with peers on other nodes."""
        if self.nnodes == 1:
            return {}
        return {"GLOO_SOCKET_IFNAME": interface_to(self.master_addr), "RES_OPTIONS": "timeout:1"}

    def _environment(self, rank: int) -> dict[str, str]:
        return {
            **self._between(),
            **torchrun.environment(
                rank,
                nnodes=self.nnodes,
                nproc_per_node=self.nproc_per_node,
                master_addr=self.master_addr,
                master_port=self.master_port,
                run_id=self.run,
            ),
            **self.environment,
            **self.job.environment,
        }
