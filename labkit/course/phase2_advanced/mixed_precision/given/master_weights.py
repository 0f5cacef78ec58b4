"""An optimizer of float32 copies of a model's 16-bit weights: the pairs, and their checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

HALVES = (torch.float16, torch.bfloat16)
"""Floating-point dtypes of 16 bits."""


class PairedOptimizer:
    """An optimizer some of whose parameters are copies of a model's; a subclass fills `pairs` and takes steps.

    optimizer: one that has taken no step yet. Raises ValueError if it has state.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if optimizer.state:
            raise ValueError(f"optimizer must not have taken a step, got {type(optimizer).__name__} with state")
        self.optimizer = optimizer
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        """Each of the model's parameters that has a copy, with the copy that the optimizer holds in its place."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters that the optimizer updates: copies, and the model's own where they need none."""
        return [parameter for entry in self.optimizer.param_groups for parameter in entry["params"]]

    def zero_grad(self) -> None:
        """Free all gradients, the model's and the copies'."""
        self.optimizer.zero_grad()
        for parameter, _ in self.pairs:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the copies: the model's weights alone have lost their last digits."""
        return {"optimizer": self.optimizer.state_dict(), "masters": [copy.detach() for _, copy in self.pairs]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; the model's weights become the rounded copies."""
        self.optimizer.load_state_dict(state["optimizer"])
        for (parameter, copy), saved in zip(self.pairs, state["masters"], strict=True):
            copy.copy_(saved)
            parameter.copy_(saved)
