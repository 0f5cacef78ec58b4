"""Base of the trainers `DDPTrainer`, `FSDPTrainer` and `ZeROTrainer`: their arguments and the training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.course.arguments import positive, require


class TrainingStep:
    """Base of `DDPTrainer`, `FSDPTrainer` and `ZeROTrainer`. See there for the arguments.

    config: exercise 01's `DDPConfig`. Raises ValueError for an argument that cannot be used.
    """

    model: nn.Module
    optimizer: Optimizer
    device: torch.device

    def __init__(
        self, config: Any, learning_rate: float, batch_size: int, base_batch_size: int = 256, warmup_steps: int = 0
    ) -> None:
        require("learning_rate", learning_rate, positive)
        require("batch_size", batch_size, positive)
        self.config, self.learning_rate, self.steps = config, learning_rate, 0
        self.global_batch_size = batch_size * config.world_size
        self.schedule = {"base_batch_size": base_batch_size, "warmup_steps": warmup_steps}
        self.learning_rate_now()  # a schedule that cannot be used raises ValueError now, not at the first step

    def learning_rate_now(self) -> float:
        """Return the learning rate of step number `self.steps`."""
        raise NotImplementedError

    def train_step(self, batch: tuple[Tensor, Tensor], loss_fn: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Take one step with this rank's inputs and targets. Returns this rank's loss before it, without its graph."""
        inputs, targets = (tensor.to(self.device) for tensor in batch)
        for entry in self.optimizer.param_groups:
            entry["lr"] = self.learning_rate_now()
        self.optimizer.zero_grad()
        loss = loss_fn(self.model(inputs), targets)
        self.update(loss)
        self.steps += 1
        return loss.detach()

    def update(self, loss: Tensor) -> None:
        """Go back from this rank's loss, and update the weights."""
        loss.backward()
        self.optimizer.step()
