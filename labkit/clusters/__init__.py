"""Where cells run: jobs, runs, and one package for each kind of cluster."""

from labkit.clusters.cluster import Cluster, OnOutput, OnState, State
from labkit.clusters.job import GpusOrCores, InvalidJob, Job, Script
from labkit.clusters.run import RankError, RankFailed, RankResult, Run
from labkit.transport.wire import Opaque

__all__ = [
    "Cluster",
    "GpusOrCores",
    "InvalidJob",
    "Job",
    "OnOutput",
    "OnState",
    "Opaque",
    "RankError",
    "RankFailed",
    "RankResult",
    "Run",
    "Script",
    "State",
]
