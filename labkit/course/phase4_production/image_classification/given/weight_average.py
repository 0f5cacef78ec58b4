"""An exponential moving average of the weights (Polyak & Juditsky 1992), kept beside the optimizer's moments.

There it is sharded, saved and loaded like them, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.zero.given.units import BATCH_NORMS

KEY = "average"
"""Key of a parameter's average in the optimizer's state."""


def float_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that are averages themselves: means and variances of norms."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def weigh_norm_statistics(model: nn.Module, steps: int) -> None:
    """Let norms weigh the next batch by 1 / (steps + 1) until that is the momentum they were made with.

    So their running statistics are means of the batches so far. Torch's begin as mean 0 and variance 1, and after 20
    steps with a momentum of 0.1 an eighth of that is left: in evaluation the network then guesses.
    """
    for module in model.modules():
        if isinstance(module, BATCH_NORMS) and module.momentum is not None:
            usual = module.__dict__.setdefault("usual_momentum", module.momentum)
            module.momentum = max(usual, 1 / (steps + 1))


class WeightAverage:
    """Average of weights: after step n it is d * average + (1 - d) * weights, with d = min(decay, n / (9 + n)), so it
    soon forgets the beginning. Running statistics of norms are averaged, too."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, decay: float) -> None:
        self.model, self.optimizer, self.decay, self.updates = model, optimizer, decay, 0
        self.buffers = [buffer.clone() for buffer in float_buffers(model)]

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step to the average; after the first step they are the average."""
        self.updates += 1
        share = 1 - min(self.decay, self.updates / (9 + self.updates))
        for parameter in self._parameters():
            state = self.optimizer.state[parameter]
            if KEY in state:
                state[KEY].lerp_(parameter, share)
            else:  # not before the first step: an optimizer makes its moments where there is no state
                state[KEY] = parameter.detach().clone()
        for mine, buffer in zip(self.buffers, float_buffers(self.model), strict=True):
            mine.lerp_(buffer, 1.0 if self.updates == 1 else share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the context, the model has the averages in the place of its weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        averages = [self.optimizer.state[p].get(KEY, p) for p in self._parameters()]
        pairs = [*zip(self._parameters(), averages, strict=True)]
        for mine, other in [*pairs, *zip(float_buffers(self.model), self.buffers, strict=True)]:
            before = mine.detach().clone()
            mine.copy_(other)
            if other is not mine:
                other.copy_(before)

    def state_dict(self) -> dict[str, Any]:
        """Return the part that is not in the optimizer's state."""
        return {"buffers": self.buffers, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        for mine, saved in zip(self.buffers, state["buffers"], strict=True):
            mine.copy_(saved)

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
