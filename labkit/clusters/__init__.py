"""Where cells run: jobs, runs, and the kinds of cluster."""

from labkit.clusters.cluster import Cluster, OnOutput
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.local import local
from labkit.clusters.run import RankError, RankFailed, RankResult, Run
from labkit.clusters.virtual import virtual
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
    "local",
    "virtual",
]
