"""The virtual cluster as learners see it: `virtual("dgx-a100", nnodes=4)`."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from labkit.clusters.arguments import works_of
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.handing import Handed
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.run import RankError, RankResult, Run
from labkit.clusters.virtual import faults as fault_kinds
from labkit.clusters.virtual.desk import Alteration, Rules, allowance, serve
from labkit.clusters.virtual.diagnosis import SCHEDULER_FAILED
from labkit.clusters.virtual.engine import Engine
from labkit.clusters.virtual.faults import Fault
from labkit.clusters.virtual.host import torchrun_environment
from labkit.clusters.virtual.kept import ENTRY, KeptRanks
from labkit.clusters.warm import Session, WarmProcess, shared
from labkit.clusters.warm.time_limit import Clock, TimeLimit
from labkit.hardware import GPU, Link, Storage, Topology, topology

MAX_RANKS = 1024
_LEFT_SECONDS = 5.0
"""For what ranks have asked before they ended; nobody waits for it any more."""
_LEFT_BY_KEPT_SECONDS = 1.0
"""For ranks that are kept to say that they have done with this call."""


@dataclass(frozen=True)
class VirtualCluster:
    """Virtual ranks with a modelled network. Numbers are true, times are modelled.

    With `ranks="processes"` every rank is a process of its own and the scheduler stays in this one: it routes all
    messages, so what the ranks' code does cannot touch the trace or the clock.
    """

    topology: Topology
    ranks: Literal["threads", "processes"] = "threads"
    faults: tuple[Fault, ...] = ()
    """What goes wrong on purpose, and when."""
    account: bool = True
    """Computing takes time and memory is counted."""
    fake: bool = False
    """Tensors have shapes only."""
    trusting: bool = True
    """Ranks that are processes are believed how long they compute; else only declared work moves their clocks."""
    alteration: Alteration | None = None
    """Of one message, where ranks are processes."""
    warm: WarmProcess | None = None
    """Where processes come from; this kernel's own warm process when None."""
    kept: KeptRanks | None = None
    """Processes that stay from call to call, used in place of fresh ones."""
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
        warm = self.warm or shared()
        if self.ranks == "processes":
            rules = Rules(self.trusting, [works_of(arguments) for arguments in job.arguments], self.alteration)
            return self._told(
                _run_processes(
                    self.kept or warm, job, placed, self._options(placed), self.faults, rules, on_output, on_state
                )
            )
        run = warm.run(
            "labkit.clusters.virtual.host:main",
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
        """Start ranks that stay, threads of one process, for `labkit.clusters.live`. Raises `WarmProcessDied`."""
        placed = self._placed(job)
        if self.ranks == "processes":
            raise InvalidJob('virtual ranks stay between cells with ranks="threads" only')
        warm = self.warm or shared()
        hosted = [list(range(placed.world_size))]
        asked = warm.prepare(
            "labkit.clusters.live.virtual:main",
            job,
            options=self._options(placed),
            ranks=hosted,
            environments=[{}],
            commands=True,
        )
        return warm.open(replace(asked, supervisor="labkit.clusters.live.supervisor:LiveSupervisor")), hosted

    def _placed(self, job: Job) -> Topology:
        """With as many nodes and ranks as the job wants. Raises `InvalidJob`."""
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
        """With a note for each rank that a fault has killed: its end looks like any other SIGKILL."""
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
    warm: WarmProcess | KeptRanks,
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
    handed = None if job.call is None else Handed(job)
    if handed is not None:
        handed.send([ours for ours, _ in pairs])
    allowed = allowance(rules)
    scheduler = threading.Thread(
        target=serve, args=(engine, [ours for ours, _ in pairs], rules, allowed), name="scheduler", daemon=True
    )
    scheduler.start()
    try:
        sent = job if handed is None else handed.job
        environments = [torchrun_environment(placed, rank) for rank in range(placed.world_size)]
        theirs = [end for _, end in pairs]
        if isinstance(warm, KeptRanks):
            run = warm.run(sent, options=options, environments=environments, sockets=theirs, on_output=on_output)
        else:
            run = warm.run(
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
        if isinstance(warm, KeptRanks):
            _join(scheduler, warm.clock, _LEFT_BY_KEPT_SECONDS)
            if scheduler.is_alive():
                warm.close()
        # the ranks' ends are closed now, here and there, so the scheduler sees the end of every rank
        _join(scheduler, warm.clock, _LEFT_SECONDS)
        allowed.end()
        scheduler.join()
        if handed is not None:
            handed.close()
    if handed is not None:
        run = handed.read(run)
    known = [_in_full(result, engine.kept_back.get(result.rank)) for result in run.ranks]
    run = replace(run, ranks=[_dropped(result, engine.dropped.get(result.rank)) for result in known])
    if not rules.trusting:
        # one that goes on after it has learnt so what another rank has asked for
        unfit = {rank: RankError("MismatchError", str(error)) for rank, error in engine.mismatched.items()}
        run = replace(run, ranks=[_dropped(result, unfit.get(result.rank)) for result in run.ranks])
    if run.stopped.startswith("timeout"):
        run = replace(run, ranks=[_waited(result, engine.gone) for result in run.ranks])
    if engine.failure:
        run = replace(run, stopped=f"{SCHEDULER_FAILED}: {engine.failure}")
    # what happened, and who waited for whom, is the scheduler's word; what memory was held can only be the ranks'
    run = replace(run, standings=run.standings or engine.stuck)
    return replace(run, trace=replace(engine.trace, memory=run.trace.memory)) if job.trace else run


def _join(scheduler: threading.Thread, clock: Clock, seconds: float) -> None:
    """Wait until it has ended, but no longer than so many seconds of `clock`."""
    limit = TimeLimit(clock, seconds, patience=0.0)
    while scheduler.is_alive() and not limit.is_over:
        scheduler.join(limit.wait)


def _in_full(result: RankResult, kept_back: tuple[str, str] | None) -> RankResult:
    """With what the scheduler has kept back from the rank that failed by it."""
    if kept_back is None or result.error is None or result.error.message != kept_back[0]:
        return result
    return replace(result, error=replace(result.error, message=kept_back[1]))


def _dropped(result: RankResult, why: RankError | None) -> RankResult:
    """A rank that was dropped has failed by what the scheduler says, unless it says more itself.

    It may have reported its result before it learnt of that, and else knows only that its line was cut.
    """
    own = result.error
    if why is None or (result.exit != 0 if own is None else not own.consequence):
        return result
    if own is None:
        return replace(result, error=why, exit=1)
    return replace(result, error=replace(own, type=why.type, message=why.message, consequence=why.consequence))


def _waited(result: RankResult, at_work: int | None) -> RankResult:
    """Of a run that took too long: one rank at a time is at work, and the others wait for it."""
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
    warm: WarmProcess | None = None,
    kept: KeptRanks | None = None,
) -> VirtualCluster:
    """A virtual cluster: a preset of `labkit.hardware.PRESETS` by name, one in a file that `labkit calibrate` wrote
    (`mine.json`), or the default, with what the options change.

    The default is one node of two A100s with NVLink 3 inside and one HDR card to other nodes. The options are the
    fields of `labkit.hardware.Topology`: with `nodes_per_rack=16, oversubscription=4`, for instance, a rack's uplink
    carries a quarter of what its network cards could. `settings` change what is inside of them:
    `{"gpu.memory_gb": 40}`. `faults` are made by `kill`, `slow`, `link` and `jitter`. Without
    `account` computing takes no time and memory is not counted. With `fake` tensors have shapes only: a model of any
    size runs, in the modelled GPUs' time and memory. With `ranks="processes"` and not `trusting`, a rank has no say in
    its time: computing takes none but for the work that the job declares (`arguments.work`), and what it asks for
    begins when it asks; an `alteration` changes one message on its way. Raises InvalidJob that names the option and its
    value.
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
    return VirtualCluster(placed, ranks, tuple(faults), account, fake, trusting, alteration, warm, kept)
