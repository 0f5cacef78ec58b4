"""The interface of every kind of cluster: a place that runs jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from labkit.clusters.job import GpusOrCores, Job
from labkit.clusters.run import Run
from labkit.hardware import Topology

OnOutput = Callable[[int, str, str], None]
"""Called with (rank, "stdout" or "stderr", text) as soon as a rank prints; `text` may be part of a line."""


@dataclass(frozen=True)
class State:
    """State of a running job, for people: what a progress bar shows."""

    phase: Literal["queued", "starting", "running", "hanging", "restarting"]
    text: str = ""
    """Description: `job 17 waits for 2 nodes`, or a table of where each rank hangs. May have several lines."""
    ended: int = 0
    """Number of ranks that have ended."""


OnState = Callable[[State], None]
"""Called whenever a job's state changes."""


@dataclass(frozen=True)
class BatchState:
    """State of a batch job."""

    phase: Literal["queued", "running", "ended"]
    text: str
    """Description: `Slurm job 17 waits: Priority, other jobs come first`."""


class Cluster(Protocol):
    """A place that runs jobs: virtual ranks, processes of this machine, nodes of a Slurm or Kubernetes cluster."""

    @property
    def kind(self) -> str:
        """`virtual`, `local`, ..."""

    @property
    def nnodes(self) -> int: ...

    @property
    def nproc_per_node(self) -> int: ...

    def describe(self) -> str:
        """One line for people: the kind of cluster and its number of ranks."""

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on fresh ranks and return when all have ended.

        A failure of the learner's code is in the `Run`; only misuse of the lab itself raises (`InvalidJob`).
        `KeyboardInterrupt` stops every rank, cleans up, and is raised again.
        """


# Optional abilities of clusters. For live ranks see labkit.clusters.live.LiveCluster.


@runtime_checkable
class RemoteCluster(Protocol):
    """A cluster that may be out of reach."""

    def require(self) -> None:
        """Raise `InvalidJob` if the cluster cannot be reached."""


@runtime_checkable
class PreparableCluster(Protocol):
    """A cluster that can have processes ready before a run."""

    def prepare(self) -> None:
        """Have the processes of the next run ready, as soon as there is time. Starts nothing that does not run yet."""


@runtime_checkable
class DryRunCluster(Protocol):
    """A cluster to which jobs are submitted."""

    def dry_run(self) -> str:
        """Describe what would be submitted."""


@runtime_checkable
class ReleasableCluster(Protocol):
    """A cluster that may keep its nodes between runs."""

    def release(self) -> bool:
        """Release the nodes, if any are kept; False if there were none."""


@runtime_checkable
class SrunCluster(Protocol):
    """A cluster on whose nodes `srun` starts torchrun."""

    def srun_options(self, nnodes: int) -> list[str]:
        """Options for one process on each of `nnodes` nodes, which starts the ranks itself, as torchrun does."""


@runtime_checkable
class ManifestCluster(Protocol):
    """A cluster that takes a job as a file, a manifest."""

    def torchrun_manifest(
        self, name: str, command: Callable[[str, str, str], Sequence[str]], files: Mapping[str, str]
    ) -> str:
        """Objects that run torchrun on each node, as YAML.

        command: returns torchrun's words for the address of the first node, a node's own number and the folder of
        `files`, which are text by name. Raises `InvalidJob` if the cluster would reject it.
        """


@runtime_checkable
class BatchCluster(Protocol):
    """A cluster that takes batch jobs, which go on without the program that has submitted them."""

    def submit(self, jobs: Sequence[Job], command: Sequence[str], name: str, output: Path, array: str | None) -> str:
        """Submit a batch job in which a program will run `jobs`, one after the other; return its identifier.

        command: words for this cluster's Python. output: file for what the program prints. array: indexes as sbatch
        takes them, `0-3`, one job for each; `%a` in `command` and `output` is the index. Identifiers of the single
        jobs are then `ID_INDEX`. Raises `InvalidJob` if the cluster refuses it.
        """

    def in_batch_job(self) -> Cluster:
        """This cluster, for a program that runs in a batch job: jobs run on the nodes of that one."""

    @staticmethod
    def batch_state(batch_id: str) -> BatchState:
        """State of a batch job. Raises `InvalidJob` if the cluster does not answer."""

    @staticmethod
    def cancel(batch_id: str) -> None:
        """End a batch job; return when it has ended. Raises `InvalidJob` if the cluster does not answer."""


@runtime_checkable
class CoreSharingCluster(Protocol):
    """A cluster whose ranks share this machine's cores evenly; torchrun's ranks get one thread each."""

    def threads_per_rank(self, nproc_per_node: int | GpusOrCores) -> int:
        """Default of OMP_NUM_THREADS for ranks of one node."""


@runtime_checkable
class ModelledCluster(Protocol):
    """A cluster with modelled hardware: its ranks run one at a time."""

    @property
    def topology(self) -> Topology: ...
