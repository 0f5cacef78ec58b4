"""Which GPUs the ranks of a plan have, on a cluster whose nodes have several kinds.

A stage's ranks are neighbours, a replica's tensor and context ranks too (`Plan`'s rank order). Ranks that compute one
thing together wait for the slowest of them, and a step for the slowest replica.
"""

from __future__ import annotations

from labkit.hardware import GPU, Topology
from labkit.predict.plan import Plan


def names(cluster: Topology) -> str:
    """Return the names of all kinds of GPU: `a100-80gb and v100-32gb`."""
    return " and ".join(gpu.name for gpu in cluster.kinds)


def stage_gpus(plan: Plan, cluster: Topology, stage: int) -> tuple[GPU, ...]:
    """Return the kinds of GPU that the ranks of a pipeline's stage have."""
    ranks = plan.ranks // plan.pipeline
    return tuple(cluster.kinds[kind] for kind in _among(cluster, stage * ranks, ranks))


def pipelines(plan: Plan, cluster: Topology) -> list[tuple[tuple[int, ...], ...]]:
    """Return, for each of the replicas that differ, the indices in `cluster.kinds` of its ranks' GPUs at each stage."""
    if len(cluster.kinds) == 1:
        return [((0,),) * plan.pipeline]
    side, stage = plan.tensor * plan.context, plan.ranks // plan.pipeline
    made = (
        tuple(_among(cluster, first + replica, side) for first in range(0, plan.ranks, stage))
        for replica in range(0, stage, side)
    )
    return list(dict.fromkeys(made))


def memory_gb(plan: Plan, cluster: Topology, stage: int) -> float:
    """Return the memory of the smallest GPU of a stage, in 1e9 bytes."""
    if len(cluster.kinds) == 1:
        return cluster.kinds[0].memory_gb
    return min(gpu.memory_gb for gpu in stage_gpus(plan, cluster, stage))


def mean_tflops(cluster: Topology) -> float:
    """Return the GPUs' mean 16-bit peak, in 1e12 operations per second."""
    if len(cluster.kinds) == 1:
        return cluster.kinds[0].bf16_tflops
    of_nodes = cluster.kind_of_nodes
    peaks = [cluster.kinds[of_nodes[node % len(of_nodes)]].bf16_tflops for node in range(cluster.nnodes)]
    return sum(peaks) / len(peaks)


def _among(cluster: Topology, first: int, ranks: int) -> tuple[int, ...]:
    """Return the indices in `cluster.kinds` of the GPUs of `ranks` ranks from `first` on, sorted."""
    of_nodes = cluster.kind_of_nodes
    start, end = cluster.node_of(first), cluster.node_of(first + ranks - 1)
    nodes = range(start, min(end, start + len(of_nodes) - 1) + 1)
    return tuple(sorted({of_nodes[node % len(of_nodes)] for node in nodes}))
