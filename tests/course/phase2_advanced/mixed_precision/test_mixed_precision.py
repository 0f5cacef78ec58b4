"""The solution of mixed_precision compared with torch's GradScaler: the same scales, gradients and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, exercises, local, virtual
from labkit.catalogue import Exercise

EXERCISE = Exercise("phase2_advanced/mixed_precision")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}


@settings(max_examples=40)
@given(
    exponent=st.integers(-20, 60),
    growth=st.sampled_from([2.0, 4.0]),
    backoff=st.sampled_from([0.5, 0.25]),
    interval=st.integers(1, 4),
    overflows=st.lists(st.booleans(), max_size=25),
)
def test_the_scale_has_gradscalers_history(
    exponent: int, growth: float, backoff: float, interval: int, overflows: list[bool]
) -> None:
    module = exercises.load(EXERCISE, MODULES[EXERCISE.name])
    mine = module.DynamicLossScaler(2.0**exponent, growth, backoff, interval)
    theirs = torch.amp.GradScaler("cpu", 2.0**exponent, growth, backoff, interval)
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for overflow in overflows:
        theirs.scale(torch.zeros(()))
        weight.grad = torch.tensor([1.0, float("inf") if overflow else 1.0])
        theirs.step(optimizer)
        theirs.update()
        mine.update(overflow)
        assert mine.get_scale() == theirs.get_scale()
    if overflows:
        assert mine.state_dict() == theirs.state_dict()


def test_a_state_that_is_no_scalers_is_named() -> None:
    module = exercises.load(EXERCISE, MODULES[EXERCISE.name])
    scaler = module.DynamicLossScaler()
    with pytest.raises(ValueError, match="without _growth_tracker, backoff_factor, growth_interval"):
        scaler.load_state_dict({"scale": 2.0, "growth_factor": 2.0})


BESIDE_DDP = """
import copy
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import mixed_precision

dist.init_process_group()
torch.manual_seed(0)
mine = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
theirs = copy.deepcopy(mine)
ranks = dist.get_world_size()
own, its = torch.optim.SGD(mine.parameters(), lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1 * ranks)
scaler = mixed_precision.DynamicLossScaler(2.0**24, growth_interval=2)
torchs = torch.amp.GradScaler("cpu", 2.0**24, growth_interval=2)
library = nn.parallel.DistributedDataParallel(theirs)
scales = []
for step in range(16):
    inputs, targets = torch.randn(4, 5), torch.randint(0, 3, (4,))
    mixed_precision.autocast_step(mine, own, nn.functional.cross_entropy, (inputs, targets), scaler, max_norm=0.5)
    its.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(library(inputs), targets) / ranks
    torchs.scale(loss).backward()
    torchs.unscale_(its)
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.5 / ranks)
    torchs.step(its)
    torchs.update()
    scales.append((scaler.get_scale(), torchs.get_scale()))
[scales, [p.detach() for p in mine.parameters()], [p.detach() for p in theirs.parameters()]]
"""


def test_steps_are_those_of_gradscaler_and_ddp() -> None:
    run = local(nproc_per_node=2).run(Job(source=BESIDE_DDP, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    for scales, mine, theirs in run.values:
        assert all(a == b for a, b in scales)
        assert len({a for a, _ in scales}) > 2, "it never overflowed, or never grew"
        for seen, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(seen, wanted)


SHARDS = """
import torch, torch.distributed as dist
from labkit.exercises import mixed_precision

dist.init_process_group()
rank = dist.get_rank()
parameters = [torch.nn.Parameter(torch.zeros(1 + rank)) for _ in range(rank + 1)]
for parameter in parameters[rank % 2 :]:
    parameter.grad = torch.ones_like(parameter)
if rank == {odd}:
    parameters[-1].grad.fill_({value})
[mixed_precision.DynamicLossScaler(4.0).unscale_(parameters)]
"""


def test_ranks_with_other_parameters_decide_alike() -> None:
    for odd, value, wanted in ((2, "float('nan')", True), (0, "float('-inf')", True), (1, "3e38", False)):
        cell = SHARDS.format(odd=odd, value=value)
        run = virtual(nproc_per_node=3).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
        assert run.values == [[wanted]] * 3


MEMORY = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import mixed_precision

dist.init_process_group()
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(torch.bfloat16)
optimizer = mixed_precision.MasterWeights(torch.optim.Adam(model.parameters()))
batch = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(2, 64)
for _ in range(2):
    mixed_precision.autocast_step(model, optimizer, nn.functional.mse_loss, batch, dtype=torch.bfloat16)
sum(parameter.numel() for parameter in model.parameters())
"""


def test_a_parameter_has_six_bytes_and_adam_eight() -> None:
    run: Any = (
        virtual(nproc_per_node=1).run(Job(source=MEMORY, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    )
    held = {what.value: nbytes / run.values[0] for what, nbytes in run.trace.peak_by_category(0).items()}
    assert 6 <= held["parameters"] < 6.5 and 8 <= held["optimizer state"] < 9
