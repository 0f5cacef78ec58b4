"""Arguments of gradient accumulation that cannot be used: each is named, with its value."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.phase2_advanced.gradient_accumulation.given.arguments import check_loss


@pytest.mark.parametrize(
    ("loss", "samples", "message"),
    [
        (torch.ones(()), -1, "samples must be a number from 0, got -1"),
        (torch.ones(()), math.nan, "samples must be a number from 0, got nan"),
        (torch.ones(2), 1, r"loss must be a tensor of one element, got a torch.float32 tensor of shape \(2,\)"),
        (1.5, 1, "loss must be a tensor of one element, got 1.5"),
        (torch.ones(()), 1, "loss must have a graph to go back through"),
    ],
)
def test_a_loss_that_cannot_be_used_is_named(loss: Any, samples: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_loss(loss, samples)


def test_without_samples_a_loss_needs_no_graph() -> None:
    check_loss(torch.ones(()), 0)


CELL = """
import torch, torch.distributed as dist
from torch import nn
from labkit.course.phase2_advanced.gradient_accumulation.given.arguments import check_accumulator

dist.init_process_group()
model, frozen, odd = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2, dtype=torch.complex64)
group = dist.new_group([1])


def said(model=model, optimizer=None, steps=1, max_norm=None, group=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        check_accumulator(model, optimizer, steps, max_norm, group)
    except ValueError as error:
        return str(error)


[
    said(), said(max_norm=math.inf), said(group=group) if dist.get_rank() == 0 else "group",
    said(steps=0), said(steps=1.5), said(max_norm=0), said(frozen), said(odd),
    said(optimizer=torch.optim.SGD(frozen.parameters(), lr=0.1)),
]
"""


def test_an_accumulator_is_checked_before_any_message() -> None:
    run = virtual(nproc_per_node=2).run(Job(source=f"import math\n{CELL}", timeout=BROKEN_SECONDS)).raise_if_failed()
    wanted = ["group", "steps", "steps", "max_norm", "model must be a torch.nn", "model must have real", "optimizer"]
    for rank, said in enumerate(run.values):
        assert said[:2] == [None] * 2
        assert [text[: len(start)] for text, start in zip(said[2:], wanted, strict=True)] == wanted
        assert not run.trace.collectives(rank)
