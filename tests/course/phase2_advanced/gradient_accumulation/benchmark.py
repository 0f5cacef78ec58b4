"""Part of solutions.py: exercise 05's accumulator and DistributedDataParallel with no_sync, on 4 local ranks.

A window is forward and backward of `steps` microbatches, reducing, clipping and the optimizer, measured from a barrier;
its time is the slowest rank's, in the fastest repetition: others waited for the machine. DDP reduces buckets while the
last backward pass still runs; with a single bucket it does so after it, like the accumulator: the same algorithm. Both
reduce with gloo.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
CLOSE = 1e-5
"""Tolerance of the weights after the windows: one divides before summing, the other after."""
PROGRAM = """
import contextlib, copy, time
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import gradient_accumulation

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
mine = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
theirs = copy.deepcopy(mine)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, theirs)]
accumulator = gradient_accumulation.GradientAccumulator(mine, optimizers[0], steps, max_norm=0.1)
library = nn.parallel.DistributedDataParallel(theirs, bucket_cap_mb=bucket_mb)
generator = torch.Generator().manual_seed(dist.get_rank())
batches = torch.randn(steps, 2, samples, width, generator=generator)


def my_window():
    for inputs, targets in batches:
        accumulator.backward(nn.functional.mse_loss(mine(inputs), targets))
        accumulator.step()


def library_window():
    for number, (inputs, targets) in enumerate(batches):
        with library.no_sync() if number < steps - 1 else contextlib.nullcontext():
            (nn.functional.mse_loss(library(inputs), targets) / steps).backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
    optimizers[1].step()
    optimizers[1].zero_grad()


def timed(window):
    dist.barrier()
    began = time.perf_counter()
    window()
    return time.perf_counter() - began


seconds = [(timed(my_window), timed(library_window)) for _ in range(repetitions + 2)]
off = max((a - b).abs().max().item() for a, b in zip(mine.parameters(), theirs.parameters()))
[off, seconds[2:]]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure windows of 1 and of 4 microbatches, and DDP with one bucket and with its default buckets; the first two
    windows are not timed: DDP creates its buckets in them.
    """
    width = 32 if quick else 256
    one, usual = 1024, None  # MB; None: DDP's default, a first bucket of 1 MB, then 25 MB
    works: list[tuple[int, int | None, bool]] = [(1, one, True), (4, one, True), (4, usual, False)]
    return [_beside(steps, bucket, same, width, repetitions) for steps, bucket, same in works]


def _beside(steps: int, bucket_mb: int | None, same: bool, width: int, repetitions: int) -> Beside:
    exercise = catalogue.find("gradient_accumulation")
    layers = 8
    given = {
        "steps": steps,
        "bucket_mb": bucket_mb,
        "width": width,
        "layers": layers,
        "samples": 64,
        "repetitions": repetitions,
    }
    source = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + PROGRAM
    modules = {exercise.name: exercise.source("solution")[0]}
    job = Job(source=source, modules=modules, timeout=300, trace=False)
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    slowest = [
        [max(times) for times in zip(*window, strict=True)] for window in zip(*(v[1] for v in run.values), strict=True)
    ]
    ours, theirs = (min(column) for column in zip(*slowest, strict=True))
    kilobytes = 4 * layers * (width * width + width) / 1e3
    bucket = "one bucket" if same else "its own buckets"
    work = f"window of {steps}, {kilobytes:.0f} kB of gradients; DDP no_sync, {bucket}"
    return Beside(work, ours, theirs, all(value[0] < CLOSE for value in run.values), same)
