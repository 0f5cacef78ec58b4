"""Where cells run: jobs, runs, and one package for each kind of cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.clusters.cluster import Cluster as Cluster
    from labkit.clusters.cluster import OnOutput as OnOutput
    from labkit.clusters.cluster import OnState as OnState
    from labkit.clusters.cluster import State as State
    from labkit.clusters.job import GpusOrCores as GpusOrCores
    from labkit.clusters.job import InvalidJob as InvalidJob
    from labkit.clusters.job import Job as Job
    from labkit.clusters.job import Script as Script
    from labkit.clusters.rank_result import RankError as RankError
    from labkit.clusters.rank_result import RankResult as RankResult
    from labkit.clusters.run import RankFailed as RankFailed
    from labkit.clusters.run import Run as Run
    from labkit.transport.wire import Opaque as Opaque

# looked up at first use: a forkserver is started from this package before torch is imported
_PUBLIC = {
    "Cluster": "labkit.clusters.cluster",
    "GpusOrCores": "labkit.clusters.job",
    "InvalidJob": "labkit.clusters.job",
    "Job": "labkit.clusters.job",
    "OnOutput": "labkit.clusters.cluster",
    "OnState": "labkit.clusters.cluster",
    "Opaque": "labkit.transport.wire",
    "RankError": "labkit.clusters.rank_result",
    "RankFailed": "labkit.clusters.run",
    "RankResult": "labkit.clusters.rank_result",
    "Run": "labkit.clusters.run",
    "Script": "labkit.clusters.job",
    "State": "labkit.clusters.cluster",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
