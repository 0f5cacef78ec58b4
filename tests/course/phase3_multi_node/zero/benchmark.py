"""Part of solutions.py: exercise 15's FullyShardedDataParallel beside torch's FSDP2, its ZeroOptimizer beside torch's
ZeroRedundancyOptimizer, on 4 local ranks.

A step is forward, backward with its reductions, and AdamW, measured from a barrier; its time is the slowest rank's, in
the median repetition. Both train the same model and take turns. Torch's ZeroRedundancyOptimizer needs whole gradients,
so DistributedDataParallel averages them. Memory is that of a step, counted on virtual ranks.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local, virtual

RANKS = 4
TARGET = 1.05
"""A step may take at most this many times as long as with torch's."""
PROGRAM = """
import copy, time
import torch, torch.distributed as dist
import labkit
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from labkit.exercises import zero

dist.init_process_group("gloo")
torch.set_num_threads(1)


def fsdp(model):
    model = zero.FullyShardedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters())


def fsdp2(model):
    for layer in [*model, model]:
        fully_shard(layer)
    return model, torch.optim.AdamW(model.parameters())


def sharded(model):
    return model, zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, 2)


def redundancy(model):
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return wrapped, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True)


torch.manual_seed(0)
first = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
makers = {"mine": fsdp if stage == 3 else sharded, "theirs": fsdp2 if stage == 3 else redundancy}
pairs = {name: makers[name](copy.deepcopy(first)) for name in who}
del first
inputs = torch.randn(samples, width, generator=torch.Generator().manual_seed(dist.get_rank()))
if memory:
    labkit.reset_peak_memory_stats()


def timed(name):
    model, optimizer = pairs[name]
    dist.barrier()
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return time.perf_counter() - began, loss.item()


runs = [[timed(name) for name in who] for _ in range(repetitions + 2)]
[runs, labkit.max_memory_allocated() if memory else 0]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps of stage 3 and of stage 2."""
    width, layers = (64, 4) if quick else (1024, 8)
    return [_beside(stage, width, layers, repetitions) for stage in (3, 2)]


def _beside(stage: int, width: int, layers: int, repetitions: int) -> Beside:
    exercise = catalogue.find("zero")
    modules = {exercise.name: exercise.source("solution")[0]}

    def job(who: list[str], count: int, memory: bool) -> Job:
        given = {"stage": stage, "width": width, "layers": layers, "samples": 32, "repetitions": count}
        head = "".join(f"{name} = {value!r}\n" for name, value in (*given.items(), ("who", who), ("memory", memory)))
        return Job(source=head + PROGRAM, modules=modules, timeout=300, trace=False)

    run = local(nproc_per_node=RANKS).run(job(["mine", "theirs"], repetitions, False)).raise_if_failed()
    steps = [value[0][2:] for value in run.values]
    slowest = [[max(rank[n][who][0] for rank in steps) for n in range(repetitions)] for who in (0, 1)]
    mine, theirs = (statistics.median(column) for column in slowest)
    equal = all(abs(ours[1] - other[1]) < 1e-5 for rank in steps for ours, other in rank)
    peaks = []
    for name in ("mine", "theirs"):
        counted = virtual(nproc_per_node=RANKS).run(job([name], 0, True)).raise_if_failed()
        peaks.append(max(value[1] for value in counted.values) / 1e6)
    library = "FSDP2" if stage == 3 else "ZeroRedundancyOptimizer, DDP"
    work = f"step, stage {stage}; {library}; memory {peaks[0]:.1f} MB beside {peaks[1]:.1f} MB"
    return Beside(work, mine, theirs, equal, same_algorithm=stage == 3, target=TARGET)
