"""Part of solutions.py: a step of exercise 26's sibling on a mesh of 4 local ranks beside the same step by one process.

Both train the same GPT on the same bytes. One process has all threads that torch takes by default, the ranks have one
each, so the ratio is only reported. Times are those of the slowest rank, without the first step.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

PROGRAM = """
import time
import torch, torch.distributed as dist
from labkit.course.phase4_production.llm_13b.scenarios import one_process, plan_of
from labkit.exercises import llm_13b

dist.init_process_group("gloo")
layout = {"batch": 16, "microbatch": 4, "data": 2, "pipeline": 2}
dist.barrier()
report = llm_13b.train(plan_of(sizes, layout, repetitions + 1))
alone = []
if dist.get_rank() == 0:
    for steps in (1, repetitions + 1):
        began = time.perf_counter()
        losses = one_process(sizes, layout, steps)["losses"]
        alone.append(time.perf_counter() - began)
dist.barrier()
seen = list(report.losses.values())
[report.step_seconds[1:], (alone[1] - alone[0]) / repetitions if alone else None, seen, losses if alone else None]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps of one sibling."""
    exercise = catalogue.find("llm_13b")
    width = 32 if quick else 256
    job = Job(
        source=f"sizes, repetitions = [2, {width}, 4, 32], {repetitions}\n{PROGRAM}",
        modules={one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)},
        trace=False,
    )
    values = local(nproc_per_node=4).run(job).raise_if_failed().values
    mine = max(statistics.median(value[0]) for value in values)
    right = values[0][3]
    seen = [value[2] for value in values if value[2]]
    equal = all(abs(a - b) < 1e-3 * b for losses in seen for a, b in zip(losses, right, strict=True))
    name = f"step of a sibling of width {width}, 2 stages x 2 ranks; one process"
    return [Beside(name, mine, values[0][1], bool(seen) and equal, same_algorithm=False)]
