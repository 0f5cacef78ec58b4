"""Part of solutions.py: exercise 07's checkpoints compared with torch.utils.checkpoint, on one local rank.

A step is forward and backward; its time is that of the fastest repetition: others waited for the machine. The memory
given is a step's peak beyond weights and gradients, as counted on a virtual rank. Torch's variant is the recommended
one, `use_reentrant=False`, which has the same algorithm. Offloading is compared with torch's `save_on_cpu`, which
copies views of weights, too.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local, virtual

PROGRAM = """
import copy, time
import labkit, torch, torch.distributed as dist
import torch.utils.checkpoint as library
from torch import nn
from torch.autograd.graph import save_on_cpu
from labkit.exercises import activation_checkpointing as solution

dist.init_process_group()
torch.set_num_threads(1)
torch.manual_seed(0)


def block():
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))


def offloaded(context, model, x):
    with context():
        return model(x)


ways = {
    "blocks": (
        lambda model, x: solution.checkpoint_sequential(model, len(model), x),
        lambda model, x: library.checkpoint_sequential(model, len(model), x, use_reentrant=False),
    ),
    "segments": (
        lambda model, x: solution.checkpoint_sequential(model, 4, x),
        lambda model, x: library.checkpoint_sequential(model, 4, x, use_reentrant=False),
    ),
    "offload": (
        lambda model, x: offloaded(solution.offload_activations, model, x),
        lambda model, x: offloaded(save_on_cpu, model, x),
    ),
}
model = nn.Sequential(*(block() for _ in range(layers)))
models = model, copy.deepcopy(model)
x = torch.randn(rows, width)


def step(number):
    torch.manual_seed(1)
    before = labkit.memory_allocated()
    labkit.reset_peak_memory_stats()
    began = time.perf_counter()
    ways[way][number](models[number], x).square().mean().backward()
    return time.perf_counter() - began, labkit.max_memory_allocated() - before


found = [(step(0), step(1)) for _ in range(repetitions + 1)][1:]
off = max((a.grad - b.grad).abs().max().item() for a, b in zip(*(model.parameters() for model in models)))
[off, found]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """The first step is not timed: it allocates the gradients."""
    rows, width = (64, 32) if quick else (1024, 128)
    works = [("blocks", "each a segment", True), ("segments", "in 4 segments", True), ("offload", "offloaded", False)]
    return [_beside(way, what, same, rows, width, repetitions) for way, what, same in works]


def _beside(way: str, what: str, same: bool, rows: int, width: int, repetitions: int) -> Beside:
    exercise = catalogue.find("activation_checkpointing")
    given = {"way": way, "layers": 12, "rows": rows, "width": width}
    modules = {exercise.name: exercise.source("solution")[0]}

    def job(repetitions: int) -> Job:
        lines = [f"{name} = {value!r}\n" for name, value in {**given, "repetitions": repetitions}.items()]
        return Job(source="".join(lines) + PROGRAM, modules=modules, timeout=300, trace=False)

    (off, steps) = local(nproc_per_node=1).run(job(repetitions)).raise_if_failed().values[0]
    ours, theirs = (min(pair[number][0] for pair in steps) for number in (0, 1))
    (_, counted) = virtual(nproc_per_node=1).run(job(1)).raise_if_failed().values[0]
    mine, library = (pair[1] / 1e6 for pair in counted[0])
    work = f"step, 12 blocks, {what}"
    if same:  # on a virtual rank, torch's copies stay in memory that counts as the GPU's
        work += f": {mine:.3g} MB at most, torch {library:.3g} MB"
    return Beside(work, ours, theirs, off == 0.0, same)
