"""DeepSpeed's engine in the place of the exercise's trainer: the same recipe, trained by its peer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.course.phase3_multi_node.zero.given.deepspeed_adapter import initialize_deepspeed
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import require_deepspeed_config
from labkit.course.phase4_production.image_classification.given.components import average_over_ranks
from labkit.course.phase4_production.image_classification.given.trainer_base import StepMetrics, Totals
from labkit.course.phase4_production.image_classification.given.weight_average import float_buffers
from labkit.course.phase4_production.monitoring.given.clocks import now
from labkit.text_files import read_text

STEPS, MICROBATCH = "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"


def deepspeed_config(file: str | Path, batch_size: int, learning_rate: float) -> dict[str, Any]:
    """Read a configuration of DeepSpeed's, and complete it by the samples of a rank's step and the learning rate.

    Raises ValueError if the file is no such configuration, or has another batch size; OSError if it cannot be read.
    """
    config = json.loads(read_text(Path(file)))
    require_deepspeed_config(config)
    if "optimizer" not in config:
        raise ValueError(f"{file}: an optimizer is missing, such as AdamW with torch_adam in its params")
    microbatch, rest = divmod(batch_size, config.setdefault(STEPS, 1))
    if rest or config.setdefault(MICROBATCH, microbatch) != microbatch:
        product = f"{STEPS} x {MICROBATCH}, {config[STEPS]} x {config.get(MICROBATCH, '?')}"
        raise ValueError(f"{file}: {product}, is not the batch size of a rank, {batch_size}")
    config["optimizer"].setdefault("params", {}).setdefault("lr", learning_rate)
    return dict(config)


class DeepSpeedTrainer:
    """Trainer for the recipe, on DeepSpeed's engine. config: as `deepspeed_config` returns it."""

    strategy = "deepspeed"
    average = None

    def __init__(
        self,
        model: nn.Module,
        config: dict[str, Any],
        loss_fn: Any,
        monitor: Any,
        device: torch.device,
        checkpoint_dir: str | None = None,
        log_dir: str | None = None,
        checkpoint_minutes: float = 30.0,
    ) -> None:
        self.rank, self.ranks, self.device = dist.get_rank(), dist.get_world_size(), device
        self.model = initialize_deepspeed(model.to(device), config)
        self.dtype = next(self.model.module.parameters()).dtype
        self.accumulation_steps: int = config[STEPS]
        self.loss_fn, self.monitor, self.log_dir = loss_fn, monitor, log_dir
        self.steps, self.totals = 0, Totals()
        self.extra: dict[str, Any] = {}
        self.checkpointer = None if checkpoint_dir is None else _Interval(checkpoint_minutes)
        self._checkpoint_dir = checkpoint_dir

    def now(self) -> float:
        """Return the time in seconds, once all work in the device's stream is done."""
        return now(self.device)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.model.optimizer.param_groups:
            group["lr"] = learning_rate

    def train_step(self, batch: tuple[Tensor, Tensor]) -> StepMetrics:
        """Take one step with this rank's inputs and targets. Its time includes communication, which is not measured."""
        began = self.now()
        inputs, targets = (tensor.to(self.device).tensor_split(self.accumulation_steps) for tensor in batch)
        total = torch.zeros((), device=self.device)
        for part, target in zip(inputs, targets, strict=True):
            loss = self.loss_fn(self.model(part.to(self.dtype)).float(), target)
            self.model.backward(loss)
            self.model.step()
            total += loss.detach() / self.accumulation_steps
        self.steps += 1
        seconds = self.now() - began
        self.totals.add(len(batch[1]), seconds, None)
        self.monitor.log_step_metrics(self.steps, total, len(batch[1]))
        return StepMetrics(total, seconds, None)

    def make_alike(self) -> None:
        """Give all ranks the means of the norms' statistics."""
        average_over_ranks(float_buffers(self.model.module))

    def save_checkpoint(self, is_best: bool = False) -> None:
        """Save in DeepSpeed's own format. All ranks call this."""
        self.make_alike()
        state = {"steps": self.steps, "progress": self.extra["progress"].state_dict()}
        self.model.save_checkpoint(self._checkpoint_dir, tag=f"step_{self.steps:08}", client_state=state)

    def load_checkpoint(self) -> int:
        """Load the latest checkpoint; return its step, 0 if there is none."""
        if (Path(str(self._checkpoint_dir)) / "latest").is_file():
            _, state = self.model.load_checkpoint(self._checkpoint_dir)
            self.steps = state["steps"]
            self.extra["progress"].load_state_dict(state["progress"])
        return self.steps

    def get_performance_metrics(self) -> dict[str, float | None]:
        """Return means over ranks of a step's times, and of the most memory held; None for what is not measured."""
        figures = self.totals.of_a_step()
        measured = {name: value for name, value in figures.items() if value is not None}
        means = torch.tensor(list(measured.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(means)
        return {**figures, **dict(zip(measured, (means / self.ranks).tolist(), strict=True))}

    def close(self) -> None:
        """Write what the monitor has not written yet, and end the engine."""
        self.monitor.close()
        self.model.destroy()


class _Interval:
    """Says when a checkpoint is due: on rank 0's clock, and the same on all ranks."""

    def __init__(self, minutes: float) -> None:
        self._seconds, self._last = 60 * minutes, time.monotonic()

    def should_checkpoint(self, step: int) -> bool:
        is_due = torch.tensor(float(time.monotonic() - self._last >= self._seconds))
        dist.broadcast(is_due, 0)
        if is_due:
            self._last = time.monotonic()
        return bool(is_due)
