"""The parts of `DDPTrainer` and `DDPCheckpointer` that are not told in exercise 11's cell: the step, and the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.parallel.ddp.agreement import done_by_first_rank
from labkit.parallel.ddp.arguments import require_path, require_positive


class Training:
    """Base of `DDPTrainer`. See there for the arguments."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device

    def __init__(
        self, config: Any, learning_rate: float, batch_size: int, base_batch_size: int = 256, warmup_steps: int = 0
    ) -> None:
        for name, value in (("learning_rate", learning_rate), ("batch_size", batch_size)):
            require_positive(name, value)
        self.config, self.learning_rate, self.steps = config, learning_rate, 0
        names = "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"
        self.ddp_options = {name: getattr(config, name) for name in names}
        self.global_batch_size = batch_size * config.world_size
        self.schedule = {"base_batch_size": base_batch_size, "warmup_steps": warmup_steps}
        self.learning_rate_now()

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
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.detach()


class CheckpointFile:
    """Base of `DDPCheckpointer`. Only the group's first rank uses the file, so ranks need not share a file system."""

    def __init__(self, path: str | os.PathLike[str], group: ProcessGroup | None = None) -> None:
        self.path, self.group = require_path(path), group

    def save(self, model: nn.Module, optimizer: Optimizer, **more: Any) -> None:
        """Write the state of both, and `more`: numbers, texts, tensors, and lists and dicts of them.

        Call it on every rank; it returns when the file is complete. If writing fails, every rank raises the error.
        """

        def write() -> None:
            self.write({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more})
            # a new name is on the disk when its folder is
            folder = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

        done_by_first_rank(write, self.group)

    def write(self, state: dict[str, Any]) -> None:
        """Write the state to `self.path`."""
        raise NotImplementedError

    def load(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Load both on every rank, and return `more` of `save`. The model may be wrapped or not, whatever was saved.

        The first rank reads the file and sends it. If reading fails, every rank raises the error.
        """
        state: dict[str, Any] = done_by_first_rank(lambda: torch.load(self.path, map_location="cpu"), self.group)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        return state
