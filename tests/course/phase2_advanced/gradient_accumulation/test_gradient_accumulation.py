"""The accumulator's solution: for any distribution of samples over microbatches and ranks, a window is one step."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, local, virtual
from labkit.catalogue import Exercise

EXERCISE = Exercise("phase2_advanced/gradient_accumulation")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

WINDOWS = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import gradient_accumulation

dist.init_process_group()
torch.manual_seed({seed})
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters(), eps=0.01)
rank = gradient_accumulation.GradientAccumulator(model, optimizer, {steps}, max_norm={max_norm})
generator = torch.Generator().manual_seed({seed})
said = []
for shares in {shares}:  # of a microbatch, for each rank
    inputs = torch.randn(sum(shares), 3, generator=generator)
    targets = torch.randint(0, 2, (sum(shares),), generator=generator)
    begin = sum(shares[: dist.get_rank()])
    mine = slice(begin, begin + shares[dist.get_rank()])
    rank.backward(nn.functional.cross_entropy(model(inputs[mine]), targets[mine]), samples=len(targets[mine]))
    said.append(rank.step())
said.append(rank.flush())
[said, [p.detach() for p in model.parameters()]]
"""


def accumulated(shares: list[list[int]], steps: int, seed: int, max_norm: float | None) -> list[Any]:
    cell = WINDOWS.format(shares=shares, steps=steps, seed=seed, max_norm=max_norm)
    run = virtual(nproc_per_node=len(shares[0])).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    return run.raise_if_failed().values


@settings(max_examples=6)
@given(
    shares=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=5)
    ),
    steps=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    max_norm=st.sampled_from([None, 0.1]),
)
def test_any_windows_are_steps_of_one_process(
    shares: list[list[int]], steps: int, seed: int, max_norm: float | None
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), eps=0.01)
    generator = torch.Generator().manual_seed(seed)
    stepped = [False] * (len(shares) + 1)
    for begin in range(0, len(shares), steps):
        parts = []
        for sizes in shares[begin : begin + steps]:
            inputs = torch.randn(sum(sizes), 3, generator=generator)
            parts.append((inputs, torch.randint(0, 2, (sum(sizes),), generator=generator)))
        if sum(map(sum, shares[begin : begin + steps])):
            whole, targets = (torch.cat(column) for column in zip(*parts, strict=True))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(whole), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
            optimizer.step()
            stepped[begin + steps - 1 if begin + steps <= len(shares) else -1] = True
    for said, weights in accumulated(shares, steps, seed, max_norm):
        assert said == stepped
        for seen, wanted in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(seen, wanted.detach(), rtol=1e-4, atol=1e-5)


BESIDE_DDP = """
import copy, contextlib
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import gradient_accumulation

dist.init_process_group()
torch.manual_seed(0)
mine = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
theirs = copy.deepcopy(mine)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (mine, theirs)]
rank = gradient_accumulation.GradientAccumulator(mine, optimizers[0], 3, max_norm=0.1)
library = nn.parallel.DistributedDataParallel(theirs)
torch.manual_seed(dist.get_rank())
for number in range(6):
    inputs, targets = torch.randn(4, 5), torch.randn(4, 3)
    rank.backward(nn.functional.mse_loss(mine(inputs), targets))
    stepped = rank.step()
    with contextlib.nullcontext() if stepped else library.no_sync():
        (nn.functional.mse_loss(library(inputs), targets) / 3).backward()
    if stepped:
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        optimizers[1].step()
        optimizers[1].zero_grad()
[[p.detach() for p in model.parameters()] for model in (mine, theirs)]
"""


def test_full_windows_are_those_of_torchs_no_sync() -> None:
    run = local(nproc_per_node=2).run(Job(source=BESIDE_DDP, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    for mine, theirs in run.values:
        for seen, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(seen, wanted)


SCHEDULED = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import gradient_accumulation

dist.init_process_group()
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
halving = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
rank = gradient_accumulation.GradientAccumulator(model, optimizer, 2)
weights = []
for _ in range(6):
    rank.backward(model(torch.ones(1, 1)).mean())
    if rank.step():
        halving.step()
        weights.append(model.weight.item())
weights
"""


def test_the_learning_rate_is_the_optimizers_and_a_schedule_goes_by_windows() -> None:
    run = (
        virtual(nproc_per_node=2).run(Job(source=SCHEDULED, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    )
    assert run.values == [[0.0, -0.5, -0.75]] * 2
