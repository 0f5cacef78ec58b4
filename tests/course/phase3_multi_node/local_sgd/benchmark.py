"""Part of solutions.py: exercise 16's local SGD compared with torch's PostLocalSGDOptimizer, on 4 local ranks.

Both take the same local steps and average all parameters in one all-reduce after each period. Torch averages for the
first time after its warm-up, so that is one step shorter than a period. Runs alternate; the time is the slowest rank's.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from labkit.exercises import local_sgd

dist.init_process_group("gloo")
torch.set_num_threads(1)


def mine(optimizer):
    trainer = local_sgd.LocalSGD(optimizer, period)
    return lambda: trainer.step(16)


def theirs(optimizer):
    return PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period, warmup_steps=period - 1)).step


def timed(make):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
    step = make(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    torch.manual_seed(1 + dist.get_rank())
    batches = [torch.randn(16, width) for _ in range(4 * period)]
    dist.barrier()
    began = time.perf_counter()
    for batch in batches:
        model.zero_grad()
        model(batch).square().mean().backward()
        step()
    return (time.perf_counter() - began) / len(batches), [parameter.detach() for parameter in model.parameters()]


pairs = [(timed(mine), timed(theirs)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[which][0] for pair in pairs] for which in (0, 1)]
equal = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(pairs[-1][0][1], pairs[-1][1][1]))
[seconds, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps of periods of 4, of which one has a message."""
    exercise = catalogue.find("local_sgd")
    width = 64 if quick else 1024
    job = Job(
        source=f"width, period, repetitions = {width}, 4, {repetitions}\n{PROGRAM}",
        modules={exercise.name: exercise.source("solution")[0]},
        trace=False,
    )
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    mine, theirs = (max(statistics.median(value[0][who]) for value in run.values) for who in (0, 1))
    equal = all(value[1] for value in run.values)
    work = f"step, period 4, {2 * width * (width + 1):,} parameters, {RANKS} ranks; PostLocalSGDOptimizer"
    return [Beside(work, mine, theirs, equal, same_algorithm=True)]
