"""Part of solutions.py: exercise 11's DistributedDataParallel compared with torch's, on 4 local ranks.

A step is forward, backward with its all-reduces, and the optimizer, measured from a barrier; its time is the slowest
rank's, in the median repetition. Both wrap the same model with the same buckets, take turns, and reduce with gloo. The
first steps, in which both make their buckets again, are not timed. Memory is that of gradients and buckets, counted on
virtual ranks.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local, virtual

RANKS = 4
CLOSE = 1e-5
TARGET = 1.05
"""A step may take at most this many times as long as with torch's."""
PROGRAM = """
import copy, time
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import ddp

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
first = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
wrappers = {"mine": ddp.DistributedDataParallel, "theirs": nn.parallel.DistributedDataParallel}
models = {name: first if number == 0 else copy.deepcopy(first) for number, name in enumerate(who)}
wrapped = {n: wrappers[n](m, bucket_cap_mb=cap, gradient_as_bucket_view=view) for n, m in models.items()}
optimizers = {name: torch.optim.SGD(one.parameters(), lr=0.01) for name, one in wrapped.items()}
inputs = torch.randn(samples, width, generator=torch.Generator().manual_seed(dist.get_rank()))


def timed(name):
    dist.barrier()
    began = time.perf_counter()
    optimizers[name].zero_grad()
    wrapped[name](inputs).square().mean().backward()
    optimizers[name].step()
    return time.perf_counter() - began


seconds = [[timed(name) for name in who] for _ in range(repetitions + 3)][3:]
both = list(models.values())
off = max((a - b).abs().max().item() for a, b in zip(both[0].parameters(), both[-1].parameters()))
[off, seconds]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps with buckets of 1, 5 and 25 MB, 34 MB of gradients in all."""
    width, layers = (64, 4) if quick else (1024, 8)
    return [
        _beside(cap, view, width, layers, repetitions)
        for cap, view in ((1, False), (5, False), (25, False), (25, True))
    ]


def _beside(cap: float, view: bool, width: int, layers: int, repetitions: int) -> Beside:
    exercise = catalogue.find("ddp")
    modules = {one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)}
    given = {"width": width, "layers": layers, "cap": cap, "view": view, "samples": 32, "repetitions": repetitions}
    head = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    job = Job(source=f"{head}who = ['mine', 'theirs']\n{PROGRAM}", modules=modules, timeout=300, trace=False)
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    steps = [
        [max(times) for times in zip(*step, strict=True)] for step in zip(*(v[1] for v in run.values), strict=True)
    ]
    ours, theirs = (statistics.median(column) for column in zip(*steps, strict=True))
    peaks = []
    for name in ("mine", "theirs"):
        source = f"{head}repetitions = 0\nwho = [{name!r}]\n{PROGRAM}"
        one = virtual(nproc_per_node=2).run(Job(source=source, modules=modules))
        peaks.append(one.raise_if_failed().trace.peak_memory(0) / 1e6)
    work = f"step, buckets of {cap} MB{', views' if view else ''}; memory {peaks[0]:.0f} MB beside {peaks[1]:.0f} MB"
    equal = all(value[0] < CLOSE for value in run.values)
    return Beside(work, ours, theirs, equal, same_algorithm=True, target=TARGET)
