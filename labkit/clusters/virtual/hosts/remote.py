"""A virtual rank that is a process of its own: it asks the scheduler server over a socket."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from labkit.clusters import argument_transfer, arguments
from labkit.clusters.forkserver import rank_process
from labkit.clusters.forkserver.entry import Reporter
from labkit.clusters.job import Job
from labkit.clusters.program import execute
from labkit.clusters.rank_result import RankResult
from labkit.clusters.virtual.device import profiling, uninitialized
from labkit.clusters.virtual.device.accounting import Ledger
from labkit.clusters.virtual.endpoints import rank_threads
from labkit.clusters.virtual.endpoints.protocol import Connection
from labkit.clusters.virtual.endpoints.remote_endpoint import SocketEndpoint
from labkit.clusters.virtual.hosts import patches, prefork_warmup, rank_calls
from labkit.clusters.virtual.hosts.patches import Setting
from labkit.clusters.virtual.isolation import clocks, current, random_states
from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.isolation.rank_clock import RankClock
from labkit.clusters.virtual.scheduler.errors import Killed
from labkit.clusters.virtual.torch_backend import store
from labkit.hardware import Topology
from labkit.torch_versions.compilation import leave_uncompiled
from labkit.torch_versions.groups import forget_inits
from labkit.trace import Trace


def prepare_forks() -> None:
    """Prepare what all ranks of all runs share: once, in a process from which only ranks are forked."""
    patches.install_on_processes()
    prefork_warmup.warm_up()


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run `job` as rank `index`, over `sock`: entry point in a fresh process.

    With the option `kept`, run one call after the other as that rank; the calls arrive over `sock`.
    """
    assert sock is not None
    if not options.get("kept"):
        _perform(job, index, options, reporter, sock)
        return
    for call, connection in rank_calls.receive(sock):
        os.environ.update(call.environment)
        _perform(call.job, call.rank, call.options, reporter, connection)
        current.forget()
        if dist.is_initialized():
            dist.destroy_process_group()
        forget_inits()
        store.forget_attempts()
        profiling.forget()
        connection.close()


def _perform(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket) -> None:
    topology = Topology.from_plain(options["topology"])
    if job.call is not None:
        job = argument_transfer.receive(sock, job, index, topology.world_size)
        uninitialized.mark()
    endpoint = SocketEndpoint(index, Connection(sock), faulty=bool(options["faults"]), trusted=options["trusting"])
    ledger = Ledger(topology, options["account"])
    if not options["trusting"]:
        # the compiler alone takes seconds of each rank: longer than many a check allows
        leave_uncompiled()
    patches.install_for_run(Setting(topology.world_size, rank=lambda: index))
    here.endpoint, here.clock = endpoint, RankClock(endpoint)
    # looked up at each call: once the rank has several threads, it is another method, which waits for the rank's turn
    arguments.charge_with(lambda name, seconds: endpoint.work(name, seconds))
    current.begin()
    rank_threads.tell_with(reporter.note)
    clocks.begin()
    random_states.seed_process(index)
    os.environ.update(job.environment)
    main = sys.modules["__main__"] = ModuleType("__main__")
    with torch.autograd.set_multithreading_enabled(False), ledger.counting(endpoint):
        result = execute(job, index, lambda: endpoint.now, main)
        try:
            endpoint.settle()
        except Killed:
            result = RankResult(index, exit=-signal.SIGKILL)
        endpoint.close(result.error is not None or result.exit != 0)
    if current.is_forked():
        os._exit(result.exit or 0)
    if job.trace:
        reporter.trace(Trace(topology.world_size, clock="modelled", memory=ledger.samples()))
    # the call may count as over once its result arrives
    rank_process.flush()
    reporter.result(argument_transfer.without_tensors(result))
    endpoint.end(result.error is not None or result.exit != 0)
