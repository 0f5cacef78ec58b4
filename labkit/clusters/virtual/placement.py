"""Base of the virtual clusters, whose ranks are threads or processes: it places ranks on the topology."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.run import Run
from labkit.clusters.virtual.scheduler import faults as fault_kinds
from labkit.clusters.virtual.scheduler.faults import Fault
from labkit.hardware import Topology

MAX_RANKS = 1024


@dataclass(frozen=True)
class VirtualRanks:
    """Base of the virtual clusters."""

    topology: Topology
    faults: tuple[Fault, ...] = ()
    """Injected faults and their times."""
    account: bool = True
    """Whether computing takes time and memory is counted."""
    forkserver: ForkServer | None = None
    """Forkserver that provides the processes; None: this kernel's own."""

    kind = "virtual"

    @property
    def nnodes(self) -> int:
        return self.topology.nnodes

    @property
    def nproc_per_node(self) -> int:
        return self.topology.nproc_per_node

    def describe(self) -> str:
        """`virtual: 2 nodes x 8 a100-80gb (16 ranks), nvlink3 inside a node, ...; times are modelled`."""
        return self._described()

    def _described(self, what_else: str = "") -> str:
        t = self.topology
        gpus = " and ".join(gpu.name for gpu in t.gpus) or t.gpu.name
        nodes = f"{t.nnodes} node{'s' * (t.nnodes > 1)} x {t.nproc_per_node} {gpus}"
        between = f", {t.inter_node.name} between nodes" if t.nnodes > 1 else ""
        wrong = f", {len(self.faults)} fault{'s' * (len(self.faults) > 1)}" if self.faults else ""
        return (
            f"virtual: {nodes} ({t.world_size} ranks), {t.intra_node.name} inside a node{between}{wrong}; "
            f"{what_else}times are modelled"
        )

    def _placed_once(self, job: Job) -> Topology:
        """As `_placed`, for a job whose ranks start once. Raises `InvalidJob`."""
        if job.max_restarts or job.min_nnodes is not None:
            raise InvalidJob("virtual ranks are not started again, nor are their nodes fewer; choose %cluster local")
        return self._placed(job)

    def _placed(self, job: Job) -> Topology:
        """The topology, with the job's numbers of nodes and ranks. Raises `InvalidJob`."""
        if job.nproc_per_node == "cpu":
            raise InvalidJob("nproc_per_node=cpu: virtual ranks have GPUs; gpu gives one rank for each")
        nproc_per_node = job.nproc_per_node if isinstance(job.nproc_per_node, int) else None
        placed = replace(
            self.topology,
            nnodes=job.nnodes or self.topology.nnodes,
            nproc_per_node=nproc_per_node or self.topology.nproc_per_node,
        )
        require_placeable(placed, self.faults)
        return placed

    def _options(self, placed: Topology) -> dict[str, Any]:
        """Options that host.py and remote.py share."""
        return {
            "topology": placed.to_plain(),
            "faults": fault_kinds.to_plain(self.faults),
            "account": self.account,
        }

    def _with_kills(self, run: Run) -> Run:
        """The run, with a note for each rank that a fault has killed: its end looks like any other SIGKILL."""
        kills = [fault for fault in self.faults if isinstance(fault, fault_kinds.Kill)]
        struck = [fault for fault in kills if run.ranks[fault.rank].exit == -signal.SIGKILL]
        notes = [f"rank {k.rank} was to be killed at {k.at:g} virtual seconds: a fault of this cluster" for k in struck]
        return replace(run, notes=(*run.notes, *notes)) if notes else run


def require_placeable(placed: Topology, faults: Sequence[Fault]) -> None:
    """Raise `InvalidJob` if there are too many ranks, or a fault does not fit the topology."""
    if placed.world_size > MAX_RANKS:
        raise InvalidJob(f"nnodes x nproc_per_node = {placed.world_size} ranks, at most {MAX_RANKS} are possible")
    try:
        fault_kinds.check(faults, placed)
    except ValueError as error:
        raise InvalidJob(str(error)) from None
