"""Part of solutions.py: a step of exercise 25's trainer beside a loop with torch's own DDP, on 2 local ranks.

Both train the same small ResNet on the same digits, with AdamW. The trainer also times its parts and keeps figures for
the monitor, so the ratio is only reported. The second row has four microbatches, as torch's `no_sync` has them. Runs
alternate; times are those of the slowest rank.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 2
PROGRAM = """
import time
import torch, torch.distributed as dist, torch.nn.functional as F
from contextlib import nullcontext
from functools import partial
from torch.nn.parallel import DistributedDataParallel
from labkit.data import digits
from labkit.exercises import image_classification
from labkit.models import image_model

dist.init_process_group("gloo")
torch.set_num_threads(1)
images, labels = digits("train").tensors
rank, make = dist.get_rank(), partial(torch.optim.AdamW, lr=1e-3)


def model():
    torch.manual_seed(0)
    return image_model(network, 1, 8, 10)


def batch(step):
    part = slice((2 * step + rank) * size % 1024, (2 * step + rank) * size % 1024 + size)
    return images[part], labels[part]


def mine(microbatches):
    trainer = image_classification.DistributedTrainer(
        model(), "ddp", gradient_accumulation_steps=microbatches, make_optimizer=make
    )
    trainer.train_step(batch(0))
    dist.barrier()
    began = time.perf_counter()
    for step in range(1, count):
        trainer.train_step(batch(step))
    return time.perf_counter() - began, torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()])


def theirs(microbatches):
    net = DistributedDataParallel(model(), broadcast_buffers=False)
    optimizer = make(net.parameters())

    def step(inputs, targets):
        optimizer.zero_grad()
        for number, (x, y) in enumerate(zip(inputs.chunk(microbatches), targets.chunk(microbatches)), 1):
            with net.no_sync() if number < microbatches else nullcontext():
                (F.cross_entropy(net(x), y) / microbatches).backward()
        optimizer.step()

    step(*batch(0))
    dist.barrier()
    began = time.perf_counter()
    for number in range(1, count):
        step(*batch(number))
    return time.perf_counter() - began, torch.cat([p.detach().reshape(-1) for p in net.parameters()])


rows = []
for microbatches in (1, 4):
    pairs = [(mine(microbatches), theirs(microbatches)) for _ in range(repetitions + 1)][1:]
    equal = all(torch.allclose(own[1], other[1], rtol=1e-3, atol=1e-5) for own, other in pairs)
    rows.append([[(own[0] / (count - 1), other[0] / (count - 1)) for own, other in pairs], equal])
rows
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps without and with microbatches."""
    modules = {one.name: one.source("solution")[0] for one in catalogue.all_exercises()}
    network, size, count = ("mlp", 16, 4) if quick else ("resnet8", 64, 12)
    settings = f"network, size, count, repetitions = {network!r}, {size}, {count}, {repetitions}\n"
    run = local(nproc_per_node=RANKS).run(Job(source=settings + PROGRAM, modules=modules, trace=False))
    values = run.raise_if_failed().values

    def slowest(row: int, who: int) -> float:
        return max(statistics.median(pair[who] for pair in value[row][0]) for value in values)

    return [
        Beside(
            f"step of {network}, {size} digits a rank{more}; torch's DDP",
            slowest(row, 0),
            slowest(row, 1),
            all(value[row][1] for value in values),
            same_algorithm=False,
        )
        for row, more in enumerate(("", ", 4 microbatches"))
    ]
