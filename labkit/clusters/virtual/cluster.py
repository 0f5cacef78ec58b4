"""The virtual cluster as learners see it: `virtual("dgx-a100", nnodes=4)`."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from labkit.clusters.argument_transfer import ArgumentTransfer
from labkit.clusters.arguments import works_of
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver import ForkServer, Session, shared
from labkit.clusters.forkserver.time_limit import Clock, TimeLimit
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.run import RankError, RankResult, Run
from labkit.clusters.virtual.hosts.host import torchrun_environment
from labkit.clusters.virtual.hosts.rank_pool import ENTRY, RankPool
from labkit.clusters.virtual.hosts.scheduler_server import Alteration, Rules, run_quota, serve
from labkit.clusters.virtual.scheduler import faults as fault_kinds
from labkit.clusters.virtual.scheduler.diagnosis import SCHEDULER_FAILED
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.clusters.virtual.scheduler.faults import Fault
from labkit.hardware import GPU, Link, Storage, Topology, topology

MAX_RANKS = 1024
_LEFT_SECONDS = 5.0
"""Time limit for requests that ranks made before they ended; nobody waits for these any more."""
_LEFT_BY_POOL_SECONDS = 1.0
"""Time limit for pooled ranks to report the end of this call."""


@dataclass(frozen=True)
class VirtualCluster:
    """Virtual ranks with a modelled network: real numbers, modelled times.

    With `ranks="processes"` every rank is a process of its own and the scheduler stays in this one: it routes all
    messages, so the ranks' code cannot touch the trace or the clock.
    """

    topology: Topology
    ranks: Literal["threads", "processes"] = "threads"
    faults: tuple[Fault, ...] = ()
    """Injected faults and their times."""
    account: bool = True
    """Whether computing takes time and memory is counted."""
    fake: bool = False
    """Whether tensors have shapes only."""
    trusting: bool = True
    """Whether process ranks report their own compute time; otherwise only declared work advances their clocks."""
    alteration: Alteration | None = None
    """Change to one message, for process ranks."""
    forkserver: ForkServer | None = None
    """Forkserver that provides the processes; None: this kernel's own."""
    pool: RankPool | None = None
    """Pool of processes that are reused from call to call, instead of fresh ones."""
    kind: Literal["virtual"] = "virtual"

    @property
    def nnodes(self) -> int:
        return self.topology.nnodes

    @property
    def nproc_per_node(self) -> int:
        return self.topology.nproc_per_node

    def describe(self) -> str:
        t = self.topology
        nodes = f"{t.nnodes} node{'s' * (t.nnodes > 1)} x {t.nproc_per_node} {t.gpu.name}"
        between = f", {t.inter_node.name} between nodes" if t.nnodes > 1 else ""
        wrong = f", {len(self.faults)} fault{'s' * (len(self.faults) > 1)}" if self.faults else ""
        return (
            f"virtual: {nodes} ({t.world_size} ranks), {t.intra_node.name} inside a node{between}{wrong}; "
            + ("tensors have shapes only, " if self.fake else "")
            + "times are modelled"
        )

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on fresh virtual ranks. See `Cluster.run`."""
        if job.max_restarts or job.min_nnodes is not None:
            raise InvalidJob("virtual ranks are not started again, nor are their nodes fewer; choose %cluster local")
        placed = self._placed(job)
        forkserver = self.forkserver or shared()
        if self.ranks == "processes":
            rules = Rules(self.trusting, [works_of(arguments) for arguments in job.arguments], self.alteration)
            return self._told(
                _run_processes(
                    self.pool or forkserver, job, placed, self._options(placed), self.faults, rules, on_output, on_state
                )
            )
        run = forkserver.run(
            "labkit.clusters.virtual.hosts.host:main",
            job,
            options=self._options(placed),
            ranks=[range(placed.world_size)],
            environments=[{}],
            on_output=on_output,
            on_state=on_state,
            timeout=job.timeout,
        )
        return self._told(run)

    def keep(self, job: Job, on_state: OnState | None = None) -> tuple[Session, list[list[int]]]:
        """Start ranks that outlive a cell, as threads of one process, for clusters.live. Raises `ForkServerDied`."""
        placed = self._placed(job)
        if self.ranks == "processes":
            raise InvalidJob('virtual ranks stay between cells with ranks="threads" only')
        forkserver = self.forkserver or shared()
        hosted = [list(range(placed.world_size))]
        asked = forkserver.prepare(
            "labkit.clusters.live.virtual:main",
            job,
            options=self._options(placed),
            ranks=hosted,
            environments=[{}],
            commands=True,
        )
        return forkserver.open(replace(asked, supervisor="labkit.clusters.live.supervisor:LiveSupervisor")), hosted

    def _placed(self, job: Job) -> Topology:
        """The topology, with the job's numbers of nodes and ranks. Raises `InvalidJob`."""
        if job.nproc_per_node == "cpu":
            raise InvalidJob("nproc_per_node=cpu: virtual ranks have GPUs; gpu gives one rank for each")
        asked = job.nproc_per_node if isinstance(job.nproc_per_node, int) else None
        placed = replace(
            self.topology,
            nnodes=job.nnodes or self.topology.nnodes,
            nproc_per_node=asked or self.topology.nproc_per_node,
        )
        if placed.world_size > MAX_RANKS:
            raise InvalidJob(f"nnodes x nproc_per_node = {placed.world_size} ranks, at most {MAX_RANKS} are possible")
        _check_faults(self.faults, placed)
        return placed

    def _told(self, run: Run) -> Run:
        """The run, with a note for each rank that a fault has killed: its end looks like any other SIGKILL."""
        kills = [fault for fault in self.faults if isinstance(fault, fault_kinds.Kill)]
        struck = [fault for fault in kills if run.ranks[fault.rank].exit == -signal.SIGKILL]
        notes = [f"rank {k.rank} was to be killed at {k.at:g} virtual seconds: a fault of this cluster" for k in struck]
        return replace(run, notes=(*run.notes, *notes)) if notes else run

    def _options(self, placed: Topology) -> dict[str, Any]:
        return {
            "topology": placed.to_plain(),
            "faults": fault_kinds.to_plain(self.faults),
            "account": self.account,
            "fake": self.fake,
            "trusting": self.trusting,
        }


def _check_faults(given: Sequence[Fault], placed: Topology) -> None:
    try:
        fault_kinds.check(given, placed)
    except ValueError as error:
        raise InvalidJob(str(error)) from None


def _run_processes(
    forkserver: ForkServer | RankPool,
    job: Job,
    placed: Topology,
    options: dict[str, Any],
    given: Sequence[Fault],
    rules: Rules,
    on_output: OnOutput | None,
    on_state: OnState | None,
) -> Run:
    if job.call is not None and len(job.arguments) != placed.world_size:
        raise InvalidJob(f"arguments for {len(job.arguments)} ranks, but {placed.world_size} are asked for")
    engine = Engine(placed, given, recording=job.trace)
    pairs = [socket.socketpair() for _ in range(placed.world_size)]
    transfer = None if job.call is None else ArgumentTransfer(job)
    if transfer is not None:
        transfer.send([ours for ours, _ in pairs])
    allowed = run_quota(rules)
    scheduler = threading.Thread(
        target=serve, args=(engine, [ours for ours, _ in pairs], rules, allowed), name="scheduler", daemon=True
    )
    scheduler.start()
    try:
        sent = job if transfer is None else transfer.job
        environments = [torchrun_environment(placed, rank) for rank in range(placed.world_size)]
        theirs = [end for _, end in pairs]
        if isinstance(forkserver, RankPool):
            run = forkserver.run(sent, options=options, environments=environments, sockets=theirs, on_output=on_output)
        else:
            run = forkserver.run(
                ENTRY,
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
            _join(scheduler, forkserver.clock, _LEFT_BY_POOL_SECONDS)
            if scheduler.is_alive():
                forkserver.close()
        # both ends of the ranks' connections are closed now, so the scheduler sees the end of every rank
        _join(scheduler, forkserver.clock, _LEFT_SECONDS)
        allowed.end()
        scheduler.join()
        if transfer is not None:
            transfer.close()
    if transfer is not None:
        run = transfer.read(run)
    known = [_in_full(result, engine.kept_back.get(result.rank)) for result in run.ranks]
    run = replace(run, ranks=[_dropped(result, engine.dropped.get(result.rank)) for result in known])
    if not rules.trusting:
        # a rank that goes on after a mismatch has learned from it what another rank requested
        unfit = {rank: RankError("MismatchError", str(error)) for rank, error in engine.mismatched.items()}
        run = replace(run, ranks=[_dropped(result, unfit.get(result.rank)) for result in run.ranks])
    if run.stopped.startswith("timeout"):
        run = replace(run, ranks=[_waited(result, engine.gone) for result in run.ranks])
    if engine.failure:
        run = replace(run, stopped=f"{SCHEDULER_FAILED}: {engine.failure}")
    # the scheduler reports what happened and who waited for whom; only the ranks can report their memory
    run = replace(run, statuses=run.statuses or engine.stuck)
    return replace(run, trace=replace(engine.trace, memory=run.trace.memory)) if job.trace else run


def _join(scheduler: threading.Thread, clock: Clock, seconds: float) -> None:
    """Wait until the scheduler thread has ended, but at most `seconds` of `clock`."""
    limit = TimeLimit(clock, seconds, patience=0.0)
    while scheduler.is_alive() and not limit.is_over:
        scheduler.join(limit.wait)


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


def virtual(
    preset: str | None = None,
    *,
    nnodes: int | None = None,
    nproc_per_node: int | None = None,
    gpu: str | GPU | None = None,
    intra_node: str | Link | None = None,
    inter_node: str | Link | None = None,
    nics_per_node: int | None = None,
    switch_gb_per_s: float | None = None,
    nodes_per_rack: int | None = None,
    oversubscription: float | None = None,
    host_link: str | Link | None = None,
    storage: str | Storage | None = None,
    settings: Mapping[str, Any] | None = None,
    faults: Sequence[Fault] = (),
    ranks: Literal["threads", "processes"] = "threads",
    account: bool = True,
    fake: bool = False,
    trusting: bool = True,
    alteration: Alteration | None = None,
    forkserver: ForkServer | None = None,
    pool: RankPool | None = None,
) -> VirtualCluster:
    """A virtual cluster: a preset of `labkit.hardware.PRESETS` by name, a file written by `labkit calibrate`
    (`mine.json`), or the default, modified by the options.

    The default is one node of two A100s with NVLink 3 inside and one HDR card to other nodes. The options are the
    fields of `labkit.hardware.Topology`: with `nodes_per_rack=16, oversubscription=4`, for instance, a rack's uplink
    carries a quarter of what its network cards could. `settings` change nested fields: `{"gpu.memory_gb": 40}`.
    `faults` are made by `kill`, `slow`, `link` and `jitter`. Without `account` computing takes no time and memory is
    not counted. With `fake` tensors have shapes only: a model of any size runs, in the modelled GPUs' time and memory.
    With `ranks="processes"` and not `trusting`, a rank does not control its own time: computing takes none except for
    the work that the job declares (`arguments.work`), and requests begin when they are made; an `alteration` changes
    one message on its way. Raises InvalidJob, which names the option and its value.
    """
    try:
        placed = topology(
            preset,
            nnodes=nnodes,
            nproc_per_node=nproc_per_node,
            gpu=gpu,
            intra_node=intra_node,
            inter_node=inter_node,
            nics_per_node=nics_per_node,
            switch_gb_per_s=switch_gb_per_s,
            nodes_per_rack=nodes_per_rack,
            oversubscription=oversubscription,
            host_link=host_link,
            storage=storage,
            settings=settings,
        )
    except ValueError as error:
        raise InvalidJob(str(error)) from None
    if placed.world_size > MAX_RANKS:
        raise InvalidJob(f"nnodes x nproc_per_node = {placed.world_size} ranks, at most {MAX_RANKS} are possible")
    _check_faults(faults, placed)
    if alteration is not None and ranks != "processes":
        raise InvalidJob('alteration needs ranks="processes": messages of threads go from hand to hand')
    if fake and ranks == "processes":
        raise InvalidJob('fake=True needs ranks="threads": fake tensors are shared by all ranks')
    return VirtualCluster(placed, ranks, tuple(faults), account, fake, trusting, alteration, forkserver, pool)
