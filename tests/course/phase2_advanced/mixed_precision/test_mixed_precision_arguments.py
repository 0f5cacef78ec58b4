"""Arguments of mixed precision that cannot be used: each is named, with its value, before any message."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.phase2_advanced.mixed_precision.given.loss_scale import LossScale, check_scaled_gradients
from labkit.course.phase2_advanced.mixed_precision.given.master_weights import PairedOptimizer

SETTINGS = [
    ("init_scale", 0.0),
    ("init_scale", math.inf),
    ("init_scale", 1e-40),
    ("growth_factor", 1.0),
    ("growth_factor", math.inf),
    ("backoff_factor", 1.0),
    ("backoff_factor", 0.0),
    ("growth_interval", 0),
    ("growth_interval", 1.5),
]


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_a_setting_of_the_scale_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*, got {value}$"):
        LossScale(**{name: value})


def test_gradients_to_unscale_are_not_in_float16() -> None:
    half = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    check_scaled_gradients([half])
    half.grad = torch.zeros_like(half)
    with pytest.raises(ValueError, match=r"must not have gradients in torch\.float16"):
        check_scaled_gradients([nn.Parameter(torch.zeros(2)), half])
    with pytest.raises(ValueError, match="parameters must be one or more, got none"):
        check_scaled_gradients([])


def test_an_optimizer_that_has_taken_a_step_is_refused() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    optimizer.step()
    with pytest.raises(ValueError, match="optimizer must not have taken a step, got SGD with state"):
        PairedOptimizer(optimizer)


STEP = """
import torch, torch.distributed as dist
from torch import nn
from labkit.course.phase2_advanced.mixed_precision.given.master_weights import PairedOptimizer
from labkit.course.phase2_advanced.mixed_precision.given.arguments import check_step

dist.init_process_group()
model, frozen, half = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2).half()
batch = torch.ones(3, 2), torch.ones(3, 2)
group = dist.new_group([1])


def said(model=model, optimizer=None, batch=batch, dtype=torch.float16, max_norm=None, group=None, scaled=True):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        check_step(model, optimizer, batch, dtype, max_norm, group, scaled=scaled)
    except ValueError as error:
        return str(error)


masters = PairedOptimizer(torch.optim.SGD(half.parameters(), lr=0.1))
for place, parameter in enumerate(half.parameters()):
    masters.optimizer.param_groups[0]["params"][place] = master = nn.Parameter(parameter.detach().float())
    masters.pairs.append((parameter, master))
[
    said(), said(half, masters), said(half, scaled=False), said(batch=[torch.ones(0, 2), torch.ones(0)]),
    said(group=group) if dist.get_rank() == 0 else "group",
    said(dtype=torch.int8), said(max_norm=0.0), said(frozen), said(optimizer=masters), said(half),
    said(batch=torch.ones(2, 2)), said(batch=(torch.ones(3, 2), torch.ones(2))),
]
"""


def test_a_step_is_checked_before_any_message() -> None:
    run = virtual(nproc_per_node=2).run(Job(source=STEP, timeout=BROKEN_SECONDS)).raise_if_failed()
    wanted = ["group", "dtype", "max_norm", "model", "optimizer", "optimizer must be MasterWeights", "batch", "batch"]
    for rank, said in enumerate(run.values):
        assert said[:4] == [None] * 4
        assert [text[: len(start)] for text, start in zip(said[4:], wanted, strict=True)] == wanted
        assert not run.trace.collectives(rank)
