"""Part of solutions.py: exercise 12's all-reduce compared with the flat ring of exercise 10, NCCL's model, and gloo.

On 8 x 8 virtual A100s time is modelled and exact; `dist.all_reduce` takes the time of the algorithm that NCCL would
choose. Rows name the bytes that leave a node in the solution's all-reduce, 2(M-1)/M of the tensor, and in the other's:
2(N-1)/N in the flat ring, and in the library's, which counts as one. On 4 local ranks, as two nodes of two, all links
are equal: there two levels are only more steps.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Run
from labkit.trace import Trace, bytes_between_nodes

PROGRAM = """
import time
import torch, torch.distributed as dist
from labkit.exercises import hierarchical_allreduce, ring_allreduce

dist.init_process_group()
groups = hierarchical_allreduce.build_node_groups(per_node)
peers = {"flat ring": ring_allreduce.ring_all_reduce, "library": dist.all_reduce}


def two_levels(tensor):
    hierarchical_allreduce.hierarchical_all_reduce(tensor, *groups)


def timed(function):
    tensor = torch.arange(numel, dtype=torch.float32) % 1000 + dist.get_rank()
    dist.barrier()
    began = time.perf_counter()
    function(tensor)
    return time.perf_counter() - began, tensor


pairs = [(timed(two_levels), timed(peers[peer])) for _ in range(repetitions + 1)][1:]
seconds = [[pair[k][0] for pair in pairs] for k in (0, 1)]
[seconds, torch.equal(pairs[-1][0][1], pairs[-1][1][1])]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure on virtual nodes with one card and with several, and on local ranks."""
    size, numel = (2, 1_000) if quick else (8, 1_000_000)
    nodes = [list(range(size * node, size * (node + 1))) for node in range(size)]
    rows = []
    for cards in (1, size):
        cluster = virtual(
            "dgx-a100", nnodes=size, nproc_per_node=size, nics_per_node=cards, inter_node="ethernet-10g", account=False
        )
        for peer, name in (("flat ring", "flat ring"), ("library", "NCCL's model")):
            run = cluster.run(_job(size, numel, 1, peer)).raise_if_failed()
            # both are called twice, the other one last
            theirs = _leaving(run.trace.since_barrier(), nodes)
            mine = _leaving(run.trace, nodes) / 2 - theirs
            work = f"{4 * numel / 1e6:g} MB on {size} x {size} virtual, {cards} x 10 Gb/s"
            rows.append(_beside(run, f"{work}; {name}; {mine:.3g} and {theirs:.3g} MB leave a node"))
    run = local(4).run(_job(2, numel, repetitions, "library")).raise_if_failed()
    return [*rows, _beside(run, f"{4 * numel / 1e6:g} MB on 4 local ranks as 2 nodes; gloo")]


def _leaving(trace: Trace, nodes: list[list[int]]) -> float:
    """MB that leave the node that sends the most."""
    sent = bytes_between_nodes(trace, nodes)
    return max(sum(sum(sent[rank]) for rank in node) for node in nodes) / 1e6


def _job(per_node: int, numel: int, repetitions: int, peer: str) -> Job:
    given = {"per_node": per_node, "numel": numel, "repetitions": repetitions, "peer": peer}
    exercises = [catalogue.find(name) for name in ("hierarchical_allreduce", "ring_allreduce")]
    return Job(
        source="".join(f"{key} = {value!r}\n" for key, value in given.items()) + PROGRAM,
        modules={exercise.name: exercise.source("solution")[0] for exercise in exercises},
    )


def _beside(run: Run, work: str) -> Beside:
    mine, theirs = (max(statistics.median(value[0][who]) for value in run.values) for who in (0, 1))
    return Beside(work, mine, theirs, all(value[1] for value in run.values), same_algorithm=False)
