"""Part of solutions.py: exercise 02's collectives and exercise 10's ring compared with gloo's, on 4 local ranks.

A time is the slowest rank's, measured from a barrier, in the fastest repetition: others waited for the machine. Gloo's
broadcast is a binomial tree, like ours; its all-reduce is a ring, cut into segments that are added while others are
sent; its reduce and all-gather are rings too.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from labkit.exercises import collectives, ring_allreduce

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()


def library_all_gather(tensor):
    rows = tensor.new_empty((world_size, *tensor.shape))
    dist.all_gather_into_tensor(rows.view(-1), tensor)
    return rows


def in_place(function, *arguments):
    def run(tensor):
        function(tensor, *arguments)
        return tensor

    return run


ours = {
    "broadcast": in_place(collectives.broadcast, 0),
    "reduce": in_place(collectives.reduce, 0),
    "all_gather": collectives.all_gather,
    "all_reduce_naive": collectives.all_reduce_naive,
    "all_reduce_tree": collectives.all_reduce_tree,
    "all_reduce_recursive_doubling": collectives.all_reduce_recursive_doubling,
    "ring_all_reduce": ring_allreduce.ring_all_reduce,
}
library = {
    "broadcast": in_place(dist.broadcast, 0), "reduce": in_place(dist.reduce, 0), "all_gather": library_all_gather
}


def timed(function):
    tensor = torch.arange(numel, dtype=torch.float32) % 1000 + rank
    dist.barrier()
    began = time.perf_counter()
    result = function(tensor)
    return time.perf_counter() - began, result


found = {}
for name, function in ours.items():
    peer = library.get(name, in_place(dist.all_reduce))
    pairs = [(timed(function), timed(peer)) for _ in range(repetitions + 1)][1:]
    (_, mine), (_, theirs) = pairs[-1]
    equal = torch.equal(mine, theirs) or (name == "reduce" and rank != 0)
    found[name] = {"seconds": [[pair[k][0] for pair in pairs] for k in (0, 1)], "equal": equal}
found
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure each collective on a small tensor and on a large one."""
    modules = {}
    for name in ("collectives", "ring_allreduce"):
        exercise = catalogue.find(name)
        modules[exercise.name] = exercise.source("solution")[0]
    rows = []
    for numel, size in ((1_000, "4 kB"),) if quick else ((1_000, "4 kB"), (1_000_000, "4 MB")):
        source = f"numel, repetitions = {numel}, {repetitions}\n{PROGRAM}"
        run = local(RANKS).run(Job(source=source, modules=modules, trace=False)).raise_if_failed()
        for name in run.values[0]:
            of_ranks = [value[name] for value in run.values]
            mine, theirs = (
                min(max(times) for times in zip(*(rank["seconds"][who] for rank in of_ranks), strict=True))
                for who in (0, 1)
            )
            equal = all(rank["equal"] for rank in of_ranks)
            rows.append(Beside(f"{name}, {size}, {RANKS} ranks", mine, theirs, equal, name == "broadcast"))
    return rows
