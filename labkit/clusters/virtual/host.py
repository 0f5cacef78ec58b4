"""The process that hosts virtual ranks as threads: entry point of the virtual cluster in a fresh process.

Each thread sees what a process of its own would see: environment variables, stdout and stderr, process groups.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from socket import socket
from typing import Any

from torch._C._distributed_c10d import HashStore

from labkit.clusters import torch_versions
from labkit.clusters.job import Job
from labkit.clusters.program import execute
from labkit.clusters.virtual.engine import Engine
from labkit.clusters.virtual.process_group import VirtualProcessGroup
from labkit.clusters.virtual.threads import ThreadEndpoint, ThreadRanks
from labkit.clusters.warm import Reporter
from labkit.hardware import Topology


class _Current(threading.local):
    """What belongs to the rank of the running thread."""

    endpoint: ThreadEndpoint | None = None
    environment: dict[str, str | None]


_current = _Current()


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket | None) -> None:
    """Run `job` on all ranks of `options["topology"]` and report their results and the trace."""
    topology = Topology.from_plain(options["topology"])
    engine = Engine(topology)
    store = HashStore()
    torch_versions.worlds_per_thread()
    torch_versions.rendezvous_with(
        lambda _: store, lambda: _endpoint().rank, topology.world_size, ("env", "tcp", "file")
    )
    torch_versions.make_groups_with(
        lambda backend, name, rank, size, ranks, *_: VirtualProcessGroup(backend, name, rank, ranks, _endpoint())
    )
    # the same mapping, with a layer for each rank; subprocesses of a rank get the layer too
    os.environ = _RankEnvironment(os.environ)  # type: ignore[assignment]  # noqa: B003
    sys.stdout = _RankStream("stdout", reporter, sys.stdout)
    sys.stderr = _RankStream("stderr", reporter, sys.stderr)

    def program(endpoint: ThreadEndpoint) -> bool:
        reporter.hosts(endpoint.rank)
        _current.endpoint = endpoint
        _current.environment = {**torchrun_environment(topology, endpoint.rank), **job.environment}
        result = execute(job, endpoint.rank, lambda: endpoint.now)
        reporter.result(result)
        return result.error is not None or result.exit != 0

    # one thread runs at a time: a thread that is woken must not push out the one that wakes it
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    ThreadRanks(engine, program).run()
    if job.trace:
        reporter.trace(engine.trace)


def torchrun_environment(topology: Topology, rank: int) -> dict[str, str]:
    """The variables that torchrun sets for a rank."""
    node, local = divmod(rank, topology.nproc_per_node)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(topology.world_size),
        "LOCAL_WORLD_SIZE": str(topology.nproc_per_node),
        "GROUP_WORLD_SIZE": str(topology.nnodes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


def _endpoint() -> ThreadEndpoint:
    endpoint = _current.endpoint
    if endpoint is None:
        raise RuntimeError("torch.distributed can be used in a rank's own thread only, not in one that it started")
    return endpoint


class _RankEnvironment(MutableMapping[str, str]):
    """`os.environ` with a layer of its own for each rank's thread; None in the layer hides a variable."""

    def __init__(self, shared: MutableMapping[str, str]) -> None:
        self._shared = shared

    @property
    def _layer(self) -> dict[str, str | None] | None:
        return _current.environment if _current.endpoint is not None else None

    def __getitem__(self, name: str) -> str:
        layer = self._layer
        if layer is not None and name in layer:
            value = layer[name]
            if value is None:
                raise KeyError(name)
            return value
        return self._shared[name]

    def __setitem__(self, name: str, value: str) -> None:
        layer = self._layer
        if layer is None:
            self._shared[name] = value
        elif not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        else:
            layer[name] = value

    def __delitem__(self, name: str) -> None:
        self[name]  # raises KeyError like os.environ
        layer = self._layer
        if layer is None:
            del self._shared[name]
        else:
            layer[name] = None

    def __iter__(self) -> Iterator[str]:
        layer = self._layer or {}
        return iter([name for name in {**self._shared, **layer} if layer.get(name, "") is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def copy(self) -> dict[str, str]:
        return dict(self)


class _RankStream(io.TextIOBase):
    """A standard stream that knows which rank's thread writes."""

    def __init__(self, name: str, reporter: Reporter, shared: Any) -> None:
        self._name = name
        self._reporter = reporter
        self._shared = shared

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        endpoint = _current.endpoint
        if endpoint is None:
            self._shared.write(text)
        else:
            self._reporter.output(endpoint.rank, self._name, text)
        return len(text)

    def fileno(self) -> int:
        return int(self._shared.fileno())
