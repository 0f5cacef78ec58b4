"""Measure an entry of the all-reduce challenge on irregular clusters, in virtual seconds."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.challenges.all_reduce.irregular_cluster import NBYTES, PUBLISHED, IrregularCluster, drawn, lower_bound
from labkit.challenges.challenge import Outcome, on_this_machine, outcomes_until_fault
from labkit.clusters import Cluster, Job, Run
from labkit.trace import Kind

FUNCTION = "all_reduce"
TIMEOUT = 60.0
"""Time limit for one cluster, in seconds on the clock of this machine."""
TEMPLATE = '''"""My entry for `labkit challenge all_reduce`: one file, which imports torch and the standard library."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor, cluster: dict[str, Any]) -> Tensor:
    """Sum `tensor` over all ranks, in place on every rank, and return it.

    tensor: (1048576,) int32, contiguous. The process group is initialized; you may use its messages, its collectives
    and groups of your own.
    cluster: what is known of the links, each rate in 1e9 bytes per second and direction.
        nodes            the ranks of each node: [[0, 1], [2, 3]]
        racks            the nodes of each rack: [[0, 1]]; all in one rack if there are no racks
        port_gb_per_s    of each rank's port to the other ranks of its node
        card_gb_per_s    of each node's network card, which its ranks share
        uplink_gb_per_s  of each rack's uplink; [] if there is one rack
        latency_seconds  of a message inside a node, and of one between nodes
    """
    dist.all_reduce(tensor)  # the library's: it does not know that one link is slow
    return tensor
'''


def clusters_of(seed: int | None) -> tuple[IrregularCluster, ...]:
    """Return the published clusters, or those drawn from a seed."""
    return PUBLISHED if seed is None else drawn(seed)


def instances(seed: int | None = None) -> list[str]:
    """Describe the published clusters, or those drawn from a seed."""
    return [f"{cluster.name}: {cluster.describe()}" for cluster in clusters_of(seed)]


def bounds(seed: int | None = None) -> dict[str, float]:
    """Return the lower bound in seconds for each of these clusters."""
    return {cluster.name: lower_bound(cluster) for cluster in clusters_of(seed)}


def measure(
    source: str,
    name: str,
    advance: Callable[[str], None] = lambda text: None,
    seed: int | None = None,
    make: Callable[..., Cluster] = on_this_machine,
    clusters: Sequence[IrregularCluster] = (),
) -> list[Outcome]:
    """Run the text of an entry on each cluster; stop after the first fault. name: of its file, without `.py`.

    seed: draws the clusters, unless they are given; None: the published ones. make: see `Race.measure`.
    advance: called with the name of each cluster before it is run.
    """
    instances = ((cluster.name, cluster) for cluster in clusters or clusters_of(seed))
    return outcomes_until_fault(instances, advance, lambda cluster: _measured(source, name, cluster, make))


def _measured(source: str, name: str, cluster: IrregularCluster, make: Callable[..., Cluster]) -> Outcome:
    inputs = _incompressible(cluster.world_size)
    module = f"challenges/{name}"
    job = Job(
        call=(module, FUNCTION),
        arguments=tuple(((tensor.clone(), cluster.figures()), {}) for tensor in inputs),
        modules={module: source},
        timeout=TIMEOUT,
    )
    options = {
        "nnodes": cluster.nnodes,
        "nproc_per_node": cluster.nproc_per_node,
        "nodes_per_rack": cluster.nodes_per_rack,
        "oversubscription": cluster.oversubscription,
        "faults": cluster.faults,
    }
    run = make(**options).run(job)
    fault = _fault(run, inputs, cluster)
    sent = _bytes_sent(run)
    least = 2 * (cluster.world_size - 1) * NBYTES
    note = f"{sum(sent.values()) / 1e6:.1f} MB sent in {_count(run)}; with messages alone at least {least / 1e6:.1f} MB"
    return Outcome(cluster.name, math.nan if fault else run.trace.seconds, fault, (note,), run.trace)


def _incompressible(world_size: int) -> list[Tensor]:
    """Draw inputs from all 2^32 values of an int32: sums wrap around, so they are the same in any order."""
    generator = torch.Generator().manual_seed(secrets.randbits(62))
    numel = NBYTES // 4
    return [torch.randint(-(2**31), 2**31, (numel,), dtype=torch.int32, generator=generator) for _ in range(world_size)]


def _fault(run: Run, inputs: list[Tensor], cluster: IrregularCluster) -> str:
    """Return why this run does not count; empty if it does."""
    if not run.ok:
        return run.diagnosis()
    total = torch.stack(inputs).sum(0, dtype=torch.int32)
    for rank, result in enumerate(run.ranks):
        wrong = (result.arguments[0] != total).nonzero().flatten()
        if len(wrong):
            at = int(wrong[0])
            return (
                f"rank {rank}: {len(wrong)} of {total.numel()} elements of the tensor are wrong, the first at {at}: "
                f"expected {int(total[at])}, got {int(result.arguments[0][at])}"
            )
    sent = _bytes_sent(run)
    for rank in range(cluster.world_size):
        if sent[rank] < NBYTES:
            return f"rank {rank} sent {sent[rank]} bytes, but its own tensor has {NBYTES} that the others need"
    if run.trace.seconds < lower_bound(cluster) * (1 - 1e-9):
        return f"{run.trace.seconds:.3g} s is less than any messages need: data went another way than over the links"
    return ""


def _bytes_sent(run: Run) -> Counter[int]:
    """Return the bytes that each rank puts into messages and collectives."""
    sent: Counter[int] = Counter()
    for event in run.trace.events:
        if event.kind in (Kind.SEND, Kind.COLLECTIVE):
            sent[event.rank] += event.nbytes
    return sent


def _count(run: Run) -> str:
    kinds = Counter(event.kind for event in run.trace.events)
    parts = [f"{kinds[Kind.SEND]} messages" * bool(kinds[Kind.SEND])]
    parts.append(f"{kinds[Kind.COLLECTIVE]} calls of collectives" * bool(kinds[Kind.COLLECTIVE]))
    return " and ".join(filter(None, parts)) or "no message"
