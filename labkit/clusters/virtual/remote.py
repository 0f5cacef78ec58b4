"""A virtual rank that is a process of its own: it asks the scheduler over a socket, whose other end is desk.py."""

from __future__ import annotations

import math
import os
import random
import socket
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy
import torch
import torch.distributed as dist

from labkit.clusters import arguments, handing, torch_versions
from labkit.clusters.job import Job
from labkit.clusters.program import execute
from labkit.clusters.virtual import diagnosis, futures, store, streams
from labkit.clusters.virtual.accounting import Ledger
from labkit.clusters.virtual.endpoint import NO_CUDA, refuse_after_fork
from labkit.clusters.virtual.exchange import receive, send
from labkit.clusters.virtual.faults import Killed, LinkDown
from labkit.clusters.virtual.in_flight import InFlight
from labkit.clusters.virtual.isolation import clocks, current, random_states
from labkit.clusters.virtual.isolation.clocks import RankClock
from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.key_values import StoreCall
from labkit.clusters.virtual.process_group import VirtualProcessGroup
from labkit.clusters.virtual.requests import Collective, Receive, Request, Send
from labkit.clusters.warm import Reporter
from labkit.hardware import Topology
from labkit.trace import Trace

_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        diagnosis.DeadlockError,
        diagnosis.PeerFailed,
        diagnosis.MismatchError,
        LinkDown,
        dist.DistStoreError,
        dist.QueueEmptyError,
    )
}


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run `job` as rank `index`, over `sock`: entry point in a fresh process."""
    assert sock is not None
    topology = Topology.from_plain(options["topology"])
    if job.call is not None:
        job = handing.receive(sock, job, index, topology.world_size)
    endpoint = SocketEndpoint(index, sock)
    ledger = Ledger(topology, options["account"])
    store.install()
    torch_versions.rendezvous_with(
        lambda _: store.rendezvous_store(), lambda: index, topology.world_size, ("env", "tcp", "file")
    )
    torch_versions.make_groups_with(
        lambda backend, name, rank, size, ranks, *_: VirtualProcessGroup(backend, name, rank, ranks, endpoint)
    )
    torch_versions.checkpoints_in_own_thread()
    torch_versions.refuse_cuda(NO_CUDA)
    futures.install()
    streams.install()
    here.endpoint, here.clock = endpoint, RankClock(endpoint)
    arguments.charge_with(endpoint.work)
    current.follow_threads()
    clocks.separate()
    generator, numpy_generator = random_states.seeded(index)
    random.setstate(generator.getstate())
    numpy.random.set_state(numpy_generator.get_state())
    torch.manual_seed(random_states.torch_seed(index))
    os.environ.update(job.environment)
    main = sys.modules["__main__"] = ModuleType("__main__")
    with torch.autograd.set_multithreading_enabled(False), ledger.counting(endpoint):
        result = execute(job, index, lambda: endpoint.now, main)
    if current.is_forked():
        os._exit(result.exit or 0)
    if job.trace:
        reporter.trace(Trace(topology.world_size, clock="modelled", memory=ledger.samples()))
    reporter.result(handing.told(result))
    endpoint.end(result.error is not None or result.exit != 0)


class SocketEndpoint:
    """A process rank's line to the scheduler."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.now = 0.0
        """This rank's virtual clock, in seconds."""
        self._computed = 0
        """Operators since the scheduler was last told."""
        self._connection = connection
        self.in_flight = InFlight()

    def join_group(self, name: str, ranks: tuple[int, ...]) -> None:
        self._ask("join_group", name, ranks)

    def post(self, request: Request, at: float | None = None) -> int:
        common = (request.group, request.name, request.line)
        match request:
            case Send(to=to, tag=tag, dtype=dtype, numel=numel, payload=data):
                fields: tuple[Any, ...] = ("send", *common, to, tag, _name(dtype), numel, data)
            case Receive(wanted=wanted, tag=tag, dtype=dtype, numel=numel):
                fields = ("receive", *common, wanted, tag, _name(dtype), numel)
            case Collective(tensors=tensors, op=op, root=root):
                tensors = [tensor.detach() for tensor in tensors]
                more = (request.pieces, request.expected, float(request.timeout))
                fields = ("collective", *common, tensors, op, root, *more)
            case StoreCall(store=table, keys=keys, values=values, number=number, timeout=timeout):
                fields = ("store", request.name, request.line, table, keys, values, number, float(timeout))
            case _:
                raise NotImplementedError(f"{type(request).__name__} on ranks that are processes")
        return int(self._ask("post", fields, at))

    def wait(self, handle: int, move_clock: bool = True, timeout: float = math.inf) -> tuple[Any, int]:
        arrived, source = self._ask("wait", handle, move_clock, timeout)
        return arrived, source

    def done_at(self, handle: int) -> float:
        return float(self._ask("done_at", handle))

    def is_done(self, handle: int) -> bool:
        return bool(self._ask("is_done", handle))

    def compute(self, seconds: float, operations: int = 1) -> None:
        self.now += seconds
        self._computed += operations

    def work(self, name: str, seconds: float) -> None:
        self._ask("work", name, seconds)

    def sleep(self, seconds: float) -> None:
        self._ask("sleep", float(seconds))

    def tick(self, seconds: float) -> None:
        self._ask("tick", float(seconds))

    def cut_off(self) -> None:
        self._ask = refuse_after_fork  # type: ignore[method-assign]

    def end(self, failed: bool) -> None:
        self._tell_computed()
        send(self._connection, ("end", failed))

    def _tell_computed(self) -> None:
        if self._computed:
            operations, self._computed = self._computed, 0
            self._ask("compute", self.now, operations)

    def _ask(self, *call: Any) -> Any:
        self._tell_computed()
        send(self._connection, call)
        answer = receive(self._connection)
        if answer is None:
            raise diagnosis.PeerFailed("the scheduler ended this rank")
        if answer[0] == "killed":
            raise Killed
        if answer[0] == "error":
            _, name, message, self.now = answer
            raise _ERRORS.get(name, RuntimeError)(message)
        _, value, self.now = answer
        return value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
