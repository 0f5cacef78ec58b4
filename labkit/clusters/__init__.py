"""Where cells run: jobs, runs, and a package for each kind of cluster."""

from labkit.clusters.cluster import Cluster, OnOutput
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.run import RankError, RankFailed, RankResult, Run
from labkit.clusters.wire import Opaque

__all__ = [
    "Cluster",
    "InvalidJob",
    "Job",
    "OnOutput",
    "Opaque",
    "RankError",
    "RankFailed",
    "RankResult",
    "Run",
]
