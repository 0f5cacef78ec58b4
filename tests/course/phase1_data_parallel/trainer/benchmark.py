"""Part of solutions.py: exercise 04's trainer compared with torch's DistributedDataParallel, on 4 local ranks.

A step is forward, backward, reducing and the optimizer, measured from a barrier; its time is the slowest rank's, in the
fastest repetition: others waited for the machine. DDP reduces buckets of gradients while the backward pass still runs;
with a single bucket it does so after it, like `flat`: the same algorithm. Both reduce with gloo.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
CLOSE = 1e-5
"""Tolerance of the weights after the steps: one divides before summing, the other after."""
PROGRAM = """
import copy, time
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import trainer

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
mine = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
theirs = copy.deepcopy(mine)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, theirs)]
training = trainer.DataParallelTrainer(mine, optimizers[0], nn.functional.mse_loss, reduction=reduction)
library = nn.parallel.DistributedDataParallel(theirs, bucket_cap_mb=bucket_mb)
generator = torch.Generator().manual_seed(dist.get_rank())
inputs, targets = torch.randn(2, samples, width, generator=generator)


def library_step():
    optimizers[1].zero_grad()
    nn.functional.mse_loss(library(inputs), targets).backward()
    optimizers[1].step()


def timed(step):
    dist.barrier()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


seconds = [(timed(lambda: training.train_step((inputs, targets))), timed(library_step)) for _ in range(repetitions + 2)]
off = max((a - b).abs().max().item() for a, b in zip(mine.parameters(), theirs.parameters()))
[off, seconds[2:]]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure `flat`, DDP with one bucket and with its default buckets, and the other reductions; the first two steps
    are not timed: DDP creates its buckets in them.
    """
    width = 32 if quick else 256
    one, usual = 1024, None  # MB; None: DDP's default, a first bucket of 1 MB, then 25 MB
    works: list[tuple[str, int | None, bool]] = [("flat", one, True), ("flat", usual, False)]
    works += [(name, usual, False) for name in ("per_parameter", "gather_scatter", "tree")]
    return [_beside(name, bucket, same, width, repetitions) for name, bucket, same in works]


def _beside(reduction: str, bucket_mb: int | None, same: bool, width: int, repetitions: int) -> Beside:
    exercise = catalogue.find("trainer")
    modules = {one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)}
    layers = 8
    given = {
        "reduction": reduction,
        "bucket_mb": bucket_mb,
        "width": width,
        "layers": layers,
        "samples": 64,
        "repetitions": repetitions,
    }
    source = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + PROGRAM
    run = (
        local(nproc_per_node=RANKS).run(Job(source=source, modules=modules, timeout=300, trace=False)).raise_if_failed()
    )
    slowest = [
        [max(times) for times in zip(*step, strict=True)] for step in zip(*(v[1] for v in run.values), strict=True)
    ]
    ours, theirs = (min(column) for column in zip(*slowest, strict=True))
    kilobytes = 4 * layers * (width * width + width) / 1e3
    bucket = "one bucket" if same else "its own buckets"
    work = f"step, {reduction}, {kilobytes:.0f} kB of gradients; DDP with {bucket}"
    return Beside(work, ours, theirs, all(value[0] < CLOSE for value in run.values), same)
