"""Prefork warm-up: run the code of every rank once in the process that ranks are forked from, as a rank of two.

Python writes into its own data while it runs code for the first few times, and torch fills tables; data written here
need not be written, and so copied, in each fork. If this fails some day, ranks are only slower to start.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.clusters.forkserver import reports
from labkit.clusters.rank_result import RankResult
from labkit.clusters.virtual.device.accounting import Ledger
from labkit.clusters.virtual.endpoints.protocol import Connection
from labkit.clusters.virtual.endpoints.remote_endpoint import SocketEndpoint
from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.isolation.rank_clock import RankClock
from labkit.clusters.virtual.torch_backend import store
from labkit.hardware import topology
from labkit.torch_versions.groups import forget_inits, rendezvous_with
from labkit.trace import Trace

_TIMES = 8
"""Runs of a function after which Python specialises its instructions."""


def warm_up() -> bool:
    """Act as a rank for a moment, with no effect that a program could see. Returns whether it succeeded."""
    ours, theirs = socket.socketpair()
    with contextlib.closing(Connection(ours)) as connection, contextlib.closing(Connection(theirs)) as end:
        try:
            for _ in range(_TIMES):
                _be_rank(_EchoEndpoint(connection, end))
        except Exception:
            return False
    return True


def _be_rank(endpoint: _EchoEndpoint) -> None:
    place, hook = topology(nnodes=2, nproc_per_node=1), sys.excepthook
    ledger = Ledger(place, account=True)
    rendezvous_with(lambda _: store.rendezvous_store(), lambda: 0, place.world_size)
    here.endpoint, here.clock = endpoint, RankClock(endpoint)
    try:
        with torch.autograd.set_multithreading_enabled(False), ledger.counting(endpoint):
            dist.init_process_group()
            dist.new_group([0, 1])
            tensors = _program()
        reports.result_frame(RankResult(0, value=tensors[0], arguments=tuple(tensors)))
        reports.trace_frame(Trace(place.world_size, clock="modelled", memory=ledger.samples()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        here.endpoint = here.clock = None
        store.forget_attempts()
        forget_inits()
        # init_process_group has made it print [rank0] first
        sys.excepthook = hook


def _program() -> list[Tensor]:
    """Messages, collectives and operators of the common kinds."""
    flat = torch.arange(8.0)
    received, zeros = torch.empty_like(flat), torch.zeros(4, 2)
    for work in [dist.isend(flat, 1), dist.irecv(received, 1)]:
        if work is not None:
            work.wait()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, flat, 1), dist.P2POp(dist.irecv, received, 1)]):
        work.wait()
    dist.send(flat, 1)
    dist.recv(received, 1)
    dist.all_reduce(flat)
    dist.broadcast(flat, 0)
    dist.barrier()
    flat += received
    flat.mul_(0.5).div_(2).copy_(received)
    parts = [flat[:4], *flat.view(-1).chunk(2)]
    zeros.reshape(-1)[:4].add_(parts[0])
    torch.maximum(parts[1], parts[2])
    torch.minimum(parts[1], parts[2])
    return [torch.cat(parts), flat.clone(), received * received, zeros.contiguous()]


class _EchoEndpoint(SocketEndpoint):
    """An endpoint without a scheduler: everything is done at once, and zeros arrive."""

    def __init__(self, connection: Connection, end: Connection) -> None:
        super().__init__(0, connection)
        self._end = end
        self._posted_fields: dict[int, list[Any]] = {}

    def _answer(self) -> Any:
        calls = self._end.receive()
        self._posted_fields.update({call[1]: call[2] for call in calls if call[0] == "post"})
        value = None
        if calls[-1][0] == "wait":
            value = [_arrived(self._posted_fields.pop(calls[-1][1])), 1]
        self._end.send(["ok", value, self.now])
        return super()._answer()


def _arrived(fields: list[Any]) -> Any:
    match fields:
        case ["receive", *_, dtype, numel]:
            return bytes(numel * getattr(torch, dtype).itemsize)
        case ["collective", _, _, _, tensors, *_]:
            return tensors
    return None
