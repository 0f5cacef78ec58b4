"""Training steps of a workload: forward, backward, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def optimizer_step(model: nn.Module, make_loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a function that takes a step of AdamW on the loss that `make_loss` returns."""
    # one kernel for all parameters; without `fused` a GPU waits for the host at each small parameter
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        make_loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def made_at_first_call(
    make_model: Callable[[], nn.Module], make_loss: Callable[[nn.Module], Tensor]
) -> Callable[[], None]:
    """Return the step of a bare model, which is made when it is first called: until then it takes no memory."""
    steps: list[Callable[[], Any]] = []

    def step() -> None:
        if not steps:
            model = make_model()
            steps.append(optimizer_step(model, lambda: make_loss(model)))
        steps[0]()

    return step
