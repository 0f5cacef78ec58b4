"""Part of solutions.py: exercise 06's scaler compared with torch's GradScaler, alone and in steps on 2 local ranks.

Alone, on one rank: gradients are unscaled and tested, and the next scale is chosen; GradScaler does the first two in
one pass over the gradients, the scaler in two, and it communicates with the other ranks. In a step, in float16 under
autocast with weights in float32, GradScaler is combined with DistributedDataParallel, with one bucket for all
gradients: one all-reduce, where `autocast_step` has one more for the ranks' shares and one for the overflow. The first
scale is too large, so both skip some steps. Times are the slowest rank's, in the fastest repetition: others waited for
the machine.
"""

from __future__ import annotations

from typing import Any

from beside import Beside

from labkit import Job, catalogue, local

CLOSE = 1e-6
"""Tolerance of the weights after the steps."""
HEAD = """
import copy, time
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import mixed_precision

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)


def timed(step):
    dist.barrier()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
"""
ALONE = """
mine, theirs = ([nn.Parameter(torch.zeros(width, width)) for _ in range(layers)] for _ in range(2))
scaler = mixed_precision.DynamicLossScaler(2.0**16, growth_interval=2)
torchs = torch.amp.GradScaler("cpu", 2.0**16, growth_interval=2)
optimizer = torch.optim.SGD(theirs, lr=0.0)
torchs.scale(torch.zeros(()))


def solution():
    scaler.update(scaler.unscale_(mine))


def library():
    torchs.unscale_(optimizer)
    torchs.update()


seconds, equal = [], True
for number in range(repetitions + 2):
    for own, its in zip(mine, theirs):
        own.grad = torch.randn(width, width)
        if number % 5 == 3:
            own.grad[0, 0] = float("inf")
        its.grad = own.grad.clone()
    seconds.append((timed(solution), timed(library)))
    same = all(torch.equal(own.grad, its.grad) for own, its in zip(mine, theirs))
    equal = equal and same and scaler.get_scale() == torchs.get_scale()
[equal, seconds[2:]]
"""
STEPS = """
mine = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())))
theirs = copy.deepcopy(mine)
ranks = dist.get_world_size()
# DDP divides by the ranks after adding up, `autocast_step` weights each rank's loss before: so both lie as high
own, its = torch.optim.SGD(mine.parameters(), lr=0.01), torch.optim.SGD(theirs.parameters(), lr=0.01 * ranks)
library_model = nn.parallel.DistributedDataParallel(theirs, bucket_cap_mb=1024)
scaler = mixed_precision.DynamicLossScaler(2.0**32, growth_interval=5)
torchs = torch.amp.GradScaler("cpu", 2.0**32, growth_interval=5)
generator = torch.Generator().manual_seed(dist.get_rank())
inputs, targets = torch.randn(2, samples, width, generator=generator)


def solution():
    mixed_precision.autocast_step(mine, own, nn.functional.mse_loss, (inputs, targets), scaler)


def library():
    its.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.mse_loss(library_model(inputs), targets) / ranks
    torchs.scale(loss).backward()
    torchs.step(its)
    torchs.update()


seconds, equal = [], True
for number in range(repetitions + 20):
    seconds.append((timed(solution), timed(library)))
    equal = equal and scaler.get_scale() == torchs.get_scale()
off = max((a - b).abs().max().item() for a, b in zip(mine.parameters(), theirs.parameters()))
[equal and off < close, seconds[20:]]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure unscaling alone, and steps; the first twenty steps, with most of the overflows, are not timed."""
    width = 32 if quick else 256
    found = [_beside("unscale_ and update", ALONE, 1, width, repetitions)]
    return [*found, _beside("autocast_step, float16", STEPS, 2, width, repetitions)]


def _beside(work: str, program: str, ranks: int, width: int, repetitions: int) -> Beside:
    exercise = catalogue.find("mixed_precision")
    layers = 8
    given: dict[str, Any] = {
        "width": width,
        "layers": layers,
        "samples": 64,
        "repetitions": repetitions,
        "close": CLOSE,
    }
    source = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + HEAD + program
    modules = {exercise.name: exercise.source("solution")[0]}
    job = Job(source=source, modules=modules, timeout=300, trace=False)
    run = local(nproc_per_node=ranks).run(job).raise_if_failed()
    slowest = [
        [max(times) for times in zip(*step, strict=True)] for step in zip(*(v[1] for v in run.values), strict=True)
    ]
    solution, library = (min(column) for column in zip(*slowest, strict=True))
    kilobytes = 4 * layers * width * width / 1e3
    what = f"{work}, {kilobytes:.0f} kB of weights, {ranks} rank{'s' * (ranks > 1)}"
    return Beside(what, solution, library, all(value[0] for value in run.values), same_algorithm=False)
