"""The virtual cluster whose ranks are processes: what the grader uses.

The scheduler stays in this process: it routes all messages, so the ranks' code cannot touch the trace or the clock.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.clusters.argument_transfer import ArgumentTransfer
from labkit.clusters.arguments import works_of
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver.client import shared
from labkit.clusters.forkserver.time_limit import TimeLimit
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.rank_result import RankError, RankResult
from labkit.clusters.run import Run
from labkit.clusters.virtual.endpoints.protocol import ByteQuota
from labkit.clusters.virtual.hosts.entries import REMOTE
from labkit.clusters.virtual.hosts.rank_pool import RankPool
from labkit.clusters.virtual.hosts.scheduler_server import Alteration, Incidents, Rules, run_quota, serve
from labkit.clusters.virtual.isolation import environment
from labkit.clusters.virtual.placement import VirtualRanks
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.clusters.virtual.scheduler.errors import SCHEDULER_FAILED
from labkit.hardware import Topology
from labkit.linux.clock import Clock

_LEFT_SECONDS = 5.0
"""Time limit for requests that ranks made before they ended; nobody waits for these any more."""
_LEFT_BY_POOL_SECONDS = 1.0
"""Time limit for pooled ranks to report the end of this call."""


@dataclass(frozen=True)
class VirtualProcessCluster(VirtualRanks):
    """Virtual ranks of which each is a process of its own; created by `virtual(ranks="processes")`."""

    trusting: bool = True
    """Whether ranks report their own compute time; otherwise only declared work advances their clocks."""
    alteration: Alteration | None = None
    """Change to one message."""
    pool: RankPool | None = None
    """Pool of processes that are reused from call to call, instead of fresh ones."""

    def describe(self) -> str:
        """As `VirtualRanks.describe`; mentions processes."""
        return self._described("ranks are processes, ")

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on virtual ranks; see `Cluster.run`."""
        placed = self._placed_once(job)
        if job.call is not None and len(job.arguments) != placed.world_size:
            raise InvalidJob(f"arguments for {len(job.arguments)} ranks, but {placed.world_size} are asked for")
        rules = Rules(self.trusting, [works_of(arguments) for arguments in job.arguments], self.alteration)
        engine = Engine(placed, self.faults, recording=job.trace)
        run, incidents = self._run_beside(engine, rules, job, placed, on_output, on_state)
        return self._with_kills(_judged(run, engine, incidents, rules, job))

    def _run_beside(
        self,
        engine: Engine,
        rules: Rules,
        job: Job,
        placed: Topology,
        on_output: OnOutput | None,
        on_state: OnState | None,
    ) -> tuple[Run, Incidents]:
        """Run the ranks, with the scheduler server in a thread of this process."""
        forkserver = self.pool or self.forkserver or shared()
        pairs = [socket.socketpair() for _ in range(placed.world_size)]
        transfer = None if job.call is None else ArgumentTransfer(job)
        if transfer is not None:
            transfer.send([ours for ours, _ in pairs])
        allowed = run_quota(rules)
        scheduler = _Scheduler(engine, [ours for ours, _ in pairs], rules, allowed)
        scheduler.start()
        try:
            sent = job if transfer is None else transfer.job
            options = {**self._options(placed), "trusting": self.trusting}
            environments = [environment.of_torchrun(placed, rank) for rank in range(placed.world_size)]
            theirs = [end for _, end in pairs]
            if isinstance(forkserver, RankPool):
                run = forkserver.run(
                    sent, options=options, environments=environments, sockets=theirs, on_output=on_output
                )
            else:
                run = forkserver.run(
                    REMOTE,
                    sent,
                    options=options,
                    ranks=[[rank] for rank in range(placed.world_size)],
                    environments=environments,
                    sockets=theirs,
                    on_output=on_output,
                    on_state=on_state,
                    timeout=job.timeout,
                )
        finally:
            for _, end in pairs:
                end.close()
            if isinstance(forkserver, RankPool):
                scheduler.join_for(forkserver.clock, _LEFT_BY_POOL_SECONDS)
                if scheduler.is_alive():
                    forkserver.close()
            # both ends of the ranks' connections are closed now, so the scheduler sees the end of every rank
            scheduler.join_for(forkserver.clock, _LEFT_SECONDS)
            allowed.end()
            scheduler.join()
            if transfer is not None:
                transfer.close()
        return run if transfer is None else transfer.read(run), scheduler.incidents


class _Scheduler(threading.Thread):
    """The thread of the scheduler server."""

    def __init__(self, engine: Engine, connections: Sequence[socket.socket], rules: Rules, quota: ByteQuota) -> None:
        super().__init__(name="scheduler", daemon=True)
        self._engine, self._connections, self._rules, self._quota = engine, connections, rules, quota
        self.incidents = Incidents()
        """Complete when the thread has ended."""

    def run(self) -> None:
        self.incidents = serve(self._engine, self._connections, self._rules, self._quota)

    def join_for(self, clock: Clock, seconds: float) -> None:
        """Wait until the thread has ended, but at most `seconds` of `clock`."""
        limit = TimeLimit(clock, seconds, patience=0.0)
        while self.is_alive() and not limit.is_over:
            self.join(limit.wait)


def _judged(run: Run, engine: Engine, incidents: Incidents, rules: Rules, job: Job) -> Run:
    """The run as the scheduler saw it: its trace, its errors, and what it did to ranks."""
    known = [_in_full(result, incidents.kept_back.get(result.rank)) for result in run.ranks]
    run = replace(run, ranks=[_dropped(result, incidents.dropped.get(result.rank)) for result in known])
    if not rules.trusting:
        # a rank that goes on after a mismatch has learned from it what another rank requested
        unfit = {rank: RankError("MismatchError", str(error)) for rank, error in engine.waiting.mismatched.items()}
        run = replace(run, ranks=[_dropped(result, unfit.get(result.rank)) for result in run.ranks])
    if run.stopped.startswith("timeout"):
        run = replace(run, ranks=[_waited(result, incidents.gone) for result in run.ranks])
    if engine.failure:
        run = replace(run, stopped=f"{SCHEDULER_FAILED}: {engine.failure}")
    # the scheduler reports what happened and who waited for whom; only the ranks can report their memory
    run = replace(run, statuses=run.statuses or engine.stuck)
    return replace(run, trace=replace(engine.trace, memory=run.trace.memory)) if job.trace else run


def _in_full(result: RankResult, kept_back: tuple[str, str] | None) -> RankResult:
    """The result, with the full message that the scheduler withheld from the failed rank."""
    if kept_back is None or result.error is None or result.error.message != kept_back[0]:
        return result
    return replace(result, error=replace(result.error, message=kept_back[1]))


def _dropped(result: RankResult, why: RankError | None) -> RankResult:
    """The result of a dropped rank: it fails with the scheduler's error, unless it reports a more specific one itself.

    It may have reported its result before it was dropped; otherwise it knows only that its connection was cut.
    """
    own = result.error
    if why is None or (result.exit != 0 if own is None else not own.consequence):
        return result
    if own is None:
        return replace(result, error=why, exit=1)
    return replace(result, error=replace(own, type=why.type, message=why.message, consequence=why.consequence))


def _waited(result: RankResult, at_work: int | None) -> RankResult:
    """The result of a rank in a run that timed out: one rank at a time works, and the others wait for it."""
    if result.error is None or result.rank == at_work:
        return result
    return replace(result, error=replace(result.error, consequence=True))
