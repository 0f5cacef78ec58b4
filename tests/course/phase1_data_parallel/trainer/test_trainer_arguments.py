"""Arguments of a trainer: each that cannot be used is named, with what was wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from labkit.course.phase1_data_parallel.trainer.given.arguments import (
    inputs_and_targets,
    require_choice,
    require_schedule,
    require_trainable,
)


def test_a_choice_that_there_is_not_is_named_beside_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"^reduction must be one of flat, tree, got 'ring'$"):
        require_choice("reduction", "ring", ("flat", "tree"))


class TwoDevices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(1, 1), nn.Linear(1, 1, device="meta")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: nn.Linear(1, 1).requires_grad_(False),
            "model must be a torch.nn.Module with a parameter that is trained, got a module of class Linear",
        ),
        (lambda: nn.Linear(1, 1, dtype=torch.complex64), "model must have real parameters, got torch.complex64"),
        (TwoDevices, "model must be on one device, got cpu, meta"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: Callable[[], nn.Module], message: str) -> None:
    model_ = model()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        require_trainable(model_, torch.optim.SGD(model_.parameters()))


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    require_trainable(model, torch.optim.SGD([model.weight]))
    with pytest.raises(ValueError, match=r"^optimizer must hold parameters of model only, got 2 others$"):
        require_trainable(model, torch.optim.SGD([*model.parameters(), *other.parameters()]))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            torch.ones(2, 3),
            "batch must be a pair of tensors, inputs and targets, got a torch.float32 tensor of shape (2, 3)",
        ),
        ((torch.ones(2), [1, 2]), "got a tuple of a torch.float32 tensor of shape (2,), [1, 2]"),
        ((torch.ones(2, 3), torch.ones(3)), "got shapes (2, 3) and (3,)"),
        ((torch.ones(1), torch.tensor(1.0)), "got shapes (1,) and ()"),
    ],
)
def test_a_batch_is_a_pair_with_as_many_inputs_as_targets(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        inputs_and_targets(batch)


@pytest.mark.parametrize("bad", ["global_batch_size", "base_batch_size", "step", "warmup_steps"])
def test_a_schedule_without_a_size_or_before_its_start_is_refused(bad: str) -> None:
    good = {"global_batch_size": 1, "base_batch_size": 1, "step": 0, "warmup_steps": 0}
    require_schedule(**good)
    with pytest.raises(ValueError, match=rf"^{bad} must be a number (above|from) 0, got {good[bad] - 1}$"):
        require_schedule(**{**good, bad: good[bad] - 1})
