"""The process that hosts virtual ranks as threads: entry point of the virtual cluster in a fresh process.

Each thread sees the same as in a process of its own: see `isolation`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from socket import socket
from typing import Any, NoReturn

import torch.distributed.checkpoint  # each run changes it: the forkserver imports it once for all
import torch.distributed.tensor  # noqa: F401  # the same

from labkit.clusters import arguments
from labkit.clusters.forkserver.entry import Reporter
from labkit.clusters.job import Job
from labkit.clusters.program import execute
from labkit.clusters.rank_result import RankResult
from labkit.clusters.virtual.device import uninitialized
from labkit.clusters.virtual.device.accounting import Ledger
from labkit.clusters.virtual.device.garbage import collector
from labkit.clusters.virtual.endpoints import rank_threads
from labkit.clusters.virtual.endpoints.recording import Channel
from labkit.clusters.virtual.endpoints.recording_endpoint import RecordingEndpoint
from labkit.clusters.virtual.endpoints.threads import ThreadEndpoint, ThreadRanks
from labkit.clusters.virtual.hosts import patches
from labkit.clusters.virtual.hosts.outlet import Outlet
from labkit.clusters.virtual.hosts.patches import Setting
from labkit.clusters.virtual.hosts.recording_processes import GivenUp, RecordingProcesses
from labkit.clusters.virtual.hosts.recording_worker import RecordingWorker, keep_order_outside
from labkit.clusters.virtual.hosts.replay import Replay
from labkit.clusters.virtual.isolation import (
    current,
    environment,
    exits,
    modules,
    process_state,
    random_states,
)
from labkit.clusters.virtual.isolation.current import Rank, here
from labkit.clusters.virtual.isolation.rank_clock import RankClock
from labkit.clusters.virtual.scheduler import faults
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.hardware import Topology
from labkit.trace import Trace


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket | None) -> None:
    """Run `job` on all ranks of `options["topology"]` and report their results and the trace."""

    def program(endpoint: ThreadEndpoint | RecordingEndpoint) -> bool:
        """A rank's program, in its thread."""
        reporter.hosts(endpoint.rank)
        with host.being(endpoint, job.environment) as rank:
            result = execute(job, rank.number, lambda: endpoint.now, modules.new_main(rank))
            endpoint.close(result.error is not None or result.exit != 0)
        exits.run_exit_functions(rank)
        if current.is_forked():
            os._exit(result.exit or 0)
        reporter.result(result)
        return result.error is not None or result.exit != 0

    def leave(code: int) -> NoReturn:
        endpoint: ThreadEndpoint | RecordingEndpoint = current.endpoint()
        reporter.result(RankResult(endpoint.rank, exit=code))
        endpoint.leave(failed=code != 0)

    # two ranks in each: one that still runs shows whether there is garbage when the other one ends
    processes = min(options["processes"], Topology.from_plain(options["topology"]).world_size // 2)
    if not (options["fake"] and options["account"]) or options["faults"]:
        processes = 1
    outlet = Outlet(reporter) if processes > 1 else None
    reporter = outlet or reporter
    host = prepare(job, options, reporter, leave)
    if job.call is not None:
        uninitialized.mark()
    trace = None if outlet is None else _run_ahead(host, outlet, processes, program, job.trace)
    if trace is None:
        ThreadRanks(host.engine, program, process_state.resume).run()
    if job.trace:
        reporter.trace(trace or host.trace())


def _run_ahead(
    host: Host, outlet: Outlet, processes: int, program: Callable[[RecordingEndpoint], bool], recording: bool
) -> Trace | None:
    """Run `program` on ranks that run ahead, in other processes. None: they must run again, in this one."""

    def run(index: int, channel: Channel) -> None:
        current.begin()
        worker = RecordingWorker(channel, range(index, host.topology.world_size, processes), program)
        outlet.record(worker)
        collector.count_storages(-(-host.topology.world_size // processes))
        keep_order_outside()
        worker.run()

    workers = RecordingProcesses(processes, run, outlet.hosted_by)
    try:
        trace = Replay(Engine(host.topology, recording=recording), workers, outlet, host.ledger.new_account).run()
        workers.join()
        return trace
    except GivenUp:
        outlet.repeat()
        return None
    finally:
        workers.close()


@dataclass(frozen=True)
class Host:
    """State shared by the ranks of this process."""

    topology: Topology
    engine: Engine
    ledger: Ledger

    @contextmanager
    def being(self, endpoint: ThreadEndpoint | RecordingEndpoint, variables: Mapping[str, str]) -> Iterator[Rank]:
        """Within the context this thread is a rank, with `variables` beside torchrun's; its work is charged to it."""
        rank = Rank(endpoint.rank, {**environment.of_torchrun(self.topology, endpoint.rank), **variables})
        rank.in_thread = partial(random_states.GeneratorClaimer, rank.number)
        rank.random, rank.numpy_random = random_states.seeded(rank.number)
        here.rank, here.endpoint, here.clock = rank, endpoint, RankClock(endpoint)
        environment.own_folder()
        with self.ledger.counting(endpoint):
            yield rank

    def trace(self) -> Trace:
        """The trace of everything so far."""
        return replace(self.engine.trace, memory=self.ledger.samples())


def prepare(job: Job, options: Mapping[str, Any], reporter: Reporter, leave: Callable[[int], NoReturn]) -> Host:
    """Prepare this process for ranks as threads. `leave(exit code)` implements `os._exit` on a rank."""
    topology = Topology.from_plain(options["topology"])
    engine = Engine(topology, faults.from_plain(options["faults"]), recording=job.trace)
    ledger = Ledger(topology, options["account"], options["fake"], random_states.claim)
    patches.install_on_threads(Setting(topology.world_size, options["account"], options["fake"], reporter, leave))
    arguments.charge_with(lambda name, seconds: current.endpoint().work(name, seconds))
    rank_threads.tell_with(reporter.note)
    return Host(topology, engine, ledger)
