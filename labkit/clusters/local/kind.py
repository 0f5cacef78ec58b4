"""The local cluster as a kind of clusters."""

from __future__ import annotations

from typing import Any

from labkit.clusters.cluster import Cluster
from labkit.clusters.kind import ClusterKind, Option
from labkit.clusters.options import BACKEND, NNODES, NPROC_PER_NODE, seconds
from labkit.command_line.finding import Finding


def _cluster() -> type:
    from labkit.clusters.local.cluster import LocalCluster

    return LocalCluster


def _make(**options: Any) -> Cluster:
    from labkit.clusters.local.cluster import local

    return local(**options)


def _examine() -> Finding:
    from labkit.clusters.examination import all_reduce
    from labkit.clusters.local.cluster import local

    return all_reduce(local(nproc_per_node=2))


KIND = ClusterKind(
    name="local",
    cluster=_cluster,
    make=_make,
    options=(
        NNODES,
        NPROC_PER_NODE,
        BACKEND,
        Option("--lose-node", "remove a node S seconds after the ranks have started", seconds, "S", repeatable=True),
        Option("--join-node", "a node joins after S seconds and is missing until then", seconds, "S", repeatable=True),
    ),
    example="--nproc-per-node 4",
    title="local cluster (gloo)",
    examine=_examine,
    counts_ranks=True,
)
