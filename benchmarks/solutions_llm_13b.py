"""Part of solutions.py: exercise 26's sum compared with torch's all-reduce, on 4 local ranks.

TODO(author): how times are measured, and whether both use the same algorithm.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from labkit.exercises import llm_13b

dist.init_process_group("gloo")


def timed(function):
    tensor = torch.arange(numel, dtype=torch.float32)
    dist.barrier()
    began = time.perf_counter()
    function(tensor)
    return time.perf_counter() - began, tensor


pairs = [(timed(llm_13b.total), timed(dist.all_reduce)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[k][0] for pair in pairs] for k in (0, 1)]
[seconds, torch.equal(pairs[-1][0][1], pairs[-1][1][1])]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure the sum of one tensor."""
    exercise = catalogue.find("llm_13b")
    numel = 1_000 if quick else 1_000_000
    job = Job(
        source=f"numel, repetitions = {numel}, {repetitions}\n{PROGRAM}",
        modules={exercise.name: exercise.source("solution")[0]},
        trace=False,
    )
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    mine, theirs = (max(statistics.median(value[0][who]) for value in run.values) for who in (0, 1))
    equal = all(value[1] for value in run.values)
    return [Beside(f"sum of {numel} elements, {RANKS} ranks", mine, theirs, equal, same_algorithm=True)]
