"""The virtual cluster as learners see it: `virtual("dgx-a100", nnodes=4)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver.client import ForkServer, shared
from labkit.clusters.forkserver.session import Session
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.live import entries as live_entries
from labkit.clusters.live.supervisor import LiveSupervisor
from labkit.clusters.local.machine import cores
from labkit.clusters.run import Run
from labkit.clusters.virtual.hosts import entries
from labkit.clusters.virtual.hosts.rank_pool import RankPool
from labkit.clusters.virtual.hosts.scheduler_server import Alteration
from labkit.clusters.virtual.placement import VirtualRanks, require_placeable
from labkit.clusters.virtual.process_cluster import VirtualProcessCluster
from labkit.clusters.virtual.scheduler.faults import Fault
from labkit.hardware import GPU, Link, Storage, topology

_FEWEST_RANKS = 4
"""Minimum number of ranks on fake tensors for which a process of their own saves more time than it takes."""
_MOST_PROCESSES = 16
"""Maximum number of processes by default: others may work on the machine, too."""


@dataclass(frozen=True)
class VirtualCluster(VirtualRanks):
    """Virtual ranks with a modelled network: real numbers, modelled times. Ranks are threads of one process."""

    fake: bool = False
    """Whether tensors have shapes only."""
    processes: int | None = None
    """Number of processes that share the work of ranks on fake tensors; None: one for each core, if there are enough
    ranks."""

    def describe(self) -> str:
        """As `VirtualRanks.describe`; mentions fake tensors."""
        return self._described("tensors have shapes only, " * self.fake)

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on fresh virtual ranks. See `Cluster.run`."""
        placed = self._placed_once(job)
        processes = self.processes or min(cores(), _MOST_PROCESSES, placed.world_size // _FEWEST_RANKS)
        run = (self.forkserver or shared()).run(
            entries.HOST,
            job,
            options={**self._options(placed), "fake": self.fake, "processes": processes},
            ranks=[range(placed.world_size)],
            environments=[{}],
            on_output=on_output,
            on_state=on_state,
            timeout=job.timeout,
        )
        return self._with_kills(run)

    def keep(self, job: Job, on_state: OnState | None = None) -> tuple[Session, list[list[int]]]:
        """Start ranks that outlive a cell, as threads of one process, for clusters.live. Raises `ForkServerDied`."""
        placed = self._placed(job)
        forkserver = self.forkserver or shared()
        hosted = [list(range(placed.world_size))]
        request = forkserver.prepare(
            live_entries.VIRTUAL_RANKS,
            job,
            options={**self._options(placed), "fake": self.fake},
            ranks=hosted,
            environments=[{}],
            commands=True,
        )
        return forkserver.open(replace(request, supervisor=LiveSupervisor)), hosted


def virtual(
    preset: str | None = None,
    *,
    nnodes: int | None = None,
    nproc_per_node: int | None = None,
    gpu: str | GPU | Sequence[str | GPU] | None = None,
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
    processes: int | None = None,
    trusting: bool = True,
    alteration: Alteration | None = None,
    forkserver: ForkServer | None = None,
    pool: RankPool | None = None,
) -> VirtualCluster | VirtualProcessCluster:
    """A virtual cluster: a preset of `labkit.hardware.PRESETS` by name, a file written by `labkit calibrate`
    (`mine.json`), or the default, modified by the options.

    The default is one node of two A100s with NVLink 3 inside and one HDR card to other nodes. The options are the
    fields of `labkit.hardware.Topology`: with `nodes_per_rack=16, oversubscription=4`, for instance, a rack's uplink
    carries a quarter of what its network cards could. With `gpu="a100-80gb,v100-32gb"` the nodes have these kinds in
    turn. `settings` change nested fields: `{"gpu.memory_gb": 40}`.
    `faults` are made by `kill`, `slow`, `link` and `jitter`. Without `account` computing takes no time and memory is
    not counted. With `fake` tensors have shapes only: a model of any size runs, in the modelled GPUs' time and memory.
    `processes` share the work of such ranks, by default as many as there are cores; any number gives the same run.
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
    require_placeable(placed, faults)
    if processes is not None and not fake:
        raise InvalidJob("processes share the work of ranks on fake tensors: give fake, too, or leave processes out")
    if ranks == "processes":
        if fake:
            raise InvalidJob(
                "fake tensors are shared by all ranks, which must be threads: leave out ranks=processes or fake"
            )
        return VirtualProcessCluster(placed, tuple(faults), account, forkserver, trusting, alteration, pool)
    if alteration is not None:
        raise InvalidJob('alteration needs ranks="processes": messages of threads go from hand to hand')
    return VirtualCluster(placed, tuple(faults), account, forkserver, fake, processes)
