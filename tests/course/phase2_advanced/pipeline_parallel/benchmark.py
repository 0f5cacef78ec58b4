"""Part of solutions.py: exercise 09's pipeline compared with torch.distributed.pipelining, on 4 local ranks.

A step is forward and backward of one batch with the same schedule, measured from a barrier; its time is the slowest
rank's, in the fastest repetition: others waited for the machine. Memory is counted on virtual ranks, where it is exact:
the first rank's peak beyond its parameters and gradients, in a step after the first.
"""

from __future__ import annotations

from typing import Any

from beside import Beside

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster

RANKS = 4
CLOSE = 1e-5
"""Tolerance of the gradients: the library divides them by the number of microbatches at the end."""
PROGRAM = """
import copy, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
import labkit
from labkit.exercises import pipeline_parallel as pp

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
block = lambda: nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
mine = nn.Sequential(block(), block())
theirs = copy.deepcopy(mine)
schedule = pp.get_pipeline_schedule(name, ranks, microbatches)
pipeline = pp.PipelineParallel([pp.PipelineStage(mine, rank, ranks)], schedule)
make = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[name]
stage = pipelining.PipelineStage(theirs, rank, ranks, torch.device("cpu"))
library = make(stage, microbatches, loss_fn=nn.functional.mse_loss)
inputs, targets = torch.randn(2, samples, width, generator=torch.Generator().manual_seed(0))
first, last = rank == 0, rank == ranks - 1


def solution_step():
    mine.zero_grad()
    pipeline.forward_backward(inputs if first else None, targets if last else None, nn.functional.mse_loss)


def library_step():
    theirs.zero_grad()
    library.step(*([inputs] if first else []), **({"target": targets} if last else {}), return_outputs=False)


def timed(step):
    dist.barrier()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def held(step):
    dist.barrier()
    before = labkit.memory_allocated()
    labkit.reset_peak_memory_stats()
    step()
    return labkit.max_memory_allocated() - before


pairs = [(timed(solution_step), timed(library_step)) for _ in range(repetitions + 2)]
off = max((a.grad - b.grad).abs().max().item() for a, b in zip(mine.parameters(), theirs.parameters()))
[off, pairs[2:], [held(solution_step), held(library_step)] if memory else None]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure GPipe and 1F1B; the first two steps are not timed: the library infers shapes in them."""
    return [_beside(name, 32 if quick else 192, repetitions) for name in ("gpipe", "1f1b")]


def _beside(name: str, width: int, repetitions: int) -> Beside:
    exercise = catalogue.find("pipeline_parallel")
    modules = {exercise.name: exercise.source("solution")[0]}
    microbatches, samples = 8, 256
    given = {"name": name, "width": width, "microbatches": microbatches, "samples": samples}

    def run(cluster: Cluster, repetitions: int, memory: bool) -> list[Any]:
        told = given | {"repetitions": repetitions, "memory": memory}
        source = "".join(f"{key} = {value!r}\n" for key, value in told.items()) + PROGRAM
        return cluster.run(Job(source=source, modules=modules, timeout=300, trace=False)).raise_if_failed().values

    values = run(local(nproc_per_node=RANKS), repetitions, False)
    slowest = [[max(times) for times in zip(*step, strict=True)] for step in zip(*(v[1] for v in values), strict=True)]
    ours, theirs = (min(column) for column in zip(*slowest, strict=True))
    held = run(virtual(nproc_per_node=RANKS), 1, True)[0][2]
    work = f"{name}, {microbatches} microbatches; on rank 0 {held[0] / 1e6:.2f} MB, library {held[1] / 1e6:.2f} MB"
    return Beside(work, ours, theirs, all(value[0] < CLOSE for value in values), True)
