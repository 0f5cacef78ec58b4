"""An examination for `labkit doctor`: whether ranks of a cluster can communicate."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from labkit.clusters.cluster import Cluster
from labkit.clusters.job import Job
from labkit.command_line.finding import Finding, State


def all_reduce(cluster: Cluster) -> Finding:
    """Run an all_reduce on all ranks of `cluster`."""
    world_size = cluster.nnodes * cluster.nproc_per_node
    started = time.perf_counter()
    run = cluster.run(Job.calling(_sum_of_ranks, timeout=60))
    if not run.ok:
        return Finding(
            State.FAILED, run.diagnosis(), "ranks cannot communicate here: does a firewall or a container block them?"
        )
    if run.values != [sum(range(world_size))] * world_size:
        return Finding(State.FAILED, f"an all_reduce returned {run.values}", "report this with the full output")
    return Finding(State.OK, f"{world_size} ranks agreed in {time.perf_counter() - started:.1f} s")


def _sum_of_ranks() -> int:
    dist.init_process_group("gloo")
    tensor = torch.tensor(dist.get_rank())
    dist.all_reduce(tensor)
    return int(tensor)
