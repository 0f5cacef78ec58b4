"""Base of `DistributedTrainer`: its arguments, the parts that a strategy needs, and the times of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import AdamW, Optimizer

from labkit.clusters.device import max_memory_allocated
from labkit.course.phase3_multi_node.gradient_compression.given.compressor import Compressor
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import sharding_mesh
from labkit.course.phase3_multi_node.zero.given.units import default_device
from labkit.course.phase4_production.checkpointing.given.storage import Storage
from labkit.course.phase4_production.image_classification.given.arguments import (
    PRECISIONS,
    SHARDED,
    require_batch,
    require_trainer,
    shard_ranks_of,
)
from labkit.course.phase4_production.image_classification.given.components import CompressorState, average_over_ranks
from labkit.course.phase4_production.image_classification.given.compressors import compressor_named
from labkit.course.phase4_production.image_classification.given.memory import device_memory_gb, optimizer_bytes, unit_gb
from labkit.course.phase4_production.image_classification.given.waits import Waits
from labkit.course.phase4_production.image_classification.given.weight_average import WeightAverage, float_buffers
from labkit.course.phase4_production.monitoring.given.clocks import now
from labkit.course.phase4_production.monitoring.given.metrics import Metrics

_ADAMW = partial(AdamW, lr=1e-3)


class StepMetrics(NamedTuple):
    """One step of this rank."""

    loss: Tensor
    """Mean over this rank's samples, before the step: one element, still on the device."""
    compute_time: float
    """Seconds of the step without `communication_time`."""
    communication_time: float | None
    """Seconds in which this rank waited for messages: exposed communication. None where it is not measured."""


class Choice(NamedTuple):
    """A strategy that fits."""

    strategy: str
    """"ddp", "fsdp" or "hybrid"."""
    cpu_offload: bool


class Totals:
    """Sums over the steps of this rank, without the first one, which is longer: caches, buckets, compilation."""

    def __init__(self) -> None:
        self._first, self.steps = True, 0
        self._sums: dict[str, float | None] = dict.fromkeys(
            ("samples", "compute_time", "communication_time", "input_time"), 0.0
        )
        self.input_seconds = 0.0
        """Seconds spent waiting for the next batch."""

    def add(self, samples: int, compute: float, communication: float | None) -> None:
        """Count a step. communication: None if it is not measured, in no step."""
        if not self._first:
            self.steps += 1
            for name, value in zip(self._sums, (samples, compute, communication, self.input_seconds), strict=True):
                total = self._sums[name]
                self._sums[name] = None if total is None or value is None else total + value
        self._first, self.input_seconds = False, 0.0

    def of_a_step(self) -> dict[str, float | None]:
        """Return the means of samples, compute_time, communication_time and input_time (seconds), and peak_memory_gb.

        None for what is not measured. The last one is the most that this rank has held: on its GPU, or its process
        without one. Raises RuntimeError before the second step.
        """
        if not self.steps:
            raise RuntimeError("there are no figures before the second step: the first one is not counted")
        means = {name: None if total is None else total / self.steps for name, total in self._sums.items()}
        return {**means, "peak_memory_gb": max_memory_allocated() / 1e9}


class TrainerBase:
    """Base of `DistributedTrainer`. See there for the arguments."""

    accumulator: Any
    scaler_type: Any
    monitor_type: Any
    checkpointer_type: Any
    compressors: Any
    """The learner's classes, and the module of exercise 13."""

    def __init__(
        self,
        model: nn.Module,
        strategy: str = "auto",
        mixed_precision: str = "no",
        gradient_accumulation_steps: int = 1,
        gradient_clip_val: float | None = None,
        activation_checkpointing: bool = False,
        cpu_offload: bool = False,
        compression: str | Compressor | None = None,
        checkpoint_dir: str | Path | None = None,
        log_dir: str | Path | None = None,
        *,
        make_optimizer: Callable[..., Optimizer] = _ADAMW,
        loss_fn: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        ema_decay: float | None = None,
        device: torch.device | None = None,
        memory_gb: float | None = None,
        activation_gb: float = 0.0,
        storage: Storage | None = None,
        checkpoint_minutes: float = 30.0,
        keep_checkpoints: int = 3,
        shard_ranks: int | None = None,
        metrics: Metrics = Metrics(),  # noqa: B008  # frozen
    ) -> None:
        require_trainer(
            model, strategy, mixed_precision, gradient_accumulation_steps, gradient_clip_val, cpu_offload, compression,
            ema_decay, shard_ranks,
        )  # fmt: skip
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.dtype = PRECISIONS[mixed_precision]
        self.accumulation_steps, self.clip_norm = gradient_accumulation_steps, gradient_clip_val
        self.activation_checkpointing, self.loss_fn = activation_checkpointing, loss_fn
        self.device = default_device(None) if device is None else device
        self.strategy, self.cpu_offload = strategy, cpu_offload
        self.reason = ""
        """Why strategy "auto" is which one, a line; empty for others."""
        if strategy == "auto":
            parameters = sum(parameter.numel() for parameter in model.parameters())
            room_gb = device_memory_gb(self.device) if memory_gb is None else memory_gb
            state_bytes = optimizer_bytes(make_optimizer, ema_decay is not None)
            self.strategy, self.cpu_offload = self.choose_strategy(
                parameters, self.ranks, room_gb, activation_gb, state_bytes, unit_gb(model)
            )
            self.reason = (
                f"auto chose {self.strategy}{' with offload to the host' if self.cpu_offload else ''}: on each rank "
                f"whole states take {parameters * (12 + state_bytes) / 1e9:.3g} GB and activations {activation_gb:.3g} "
                f"GB, and there are {room_gb:.3g} GB"
            )
            if compression is not None and self.strategy in SHARDED:
                raise ValueError(f"compression must be None where only fsdp fits, got {compression!r}: {self.reason}")
        self.shard_group: ProcessGroup | None = None
        """Ranks that have the model in shards together; None: all."""
        self.replica_group: ProcessGroup | None = None
        """With strategy "hybrid", ranks that have the same shard: one of each `shard_group`."""
        if strategy == "hybrid":
            mesh = sharding_mesh(self.device, self.ranks, shard_ranks_of(strategy, shard_ranks, self.ranks))
            self.shard_group, self.replica_group = mesh.get_group("shard"), mesh.get_group("replicate")
        self.steps, self.totals = 0, Totals()
        """Steps done, in all attempts; sums over those of this process."""
        self.extra: dict[str, Any] = {}
        """More components of a checkpoint, by name."""
        self.scaler = self.scaler_type() if self.dtype == torch.float16 else None
        self.compressor = compressor_named(compression, self.compressors)
        metrics = replace(metrics, log_dir=None if log_dir is None else str(log_dir))
        self.monitor = metrics.monitor(self.monitor_type, self.rank, self.ranks, device=self.device)
        self.log_dir = log_dir
        self.checkpointer: Any = None
        if checkpoint_dir is not None:
            options = {
                "keep_last_n": keep_checkpoints, "checkpoint_interval_minutes": checkpoint_minutes, "storage": storage
            }  # fmt: skip
            self.checkpointer = self.checkpointer_type(checkpoint_dir, metric="is_best", mode="max", **options)
        self.model = self.wrap(model.to(self.device))
        self.waits = Waits(self.model, self.monitor.timed, self.now)
        self.optimizer = make_optimizer(self.model.parameters())
        self.average = None if ema_decay is None else WeightAverage(self.model, self.optimizer, ema_decay)
        self.window = window_of(self.accumulator, self)
        if self.compressor is not None:
            self.extra["compressor"] = CompressorState(self.compressor, self.device)

    # What the exercise writes -----------------------------------------------------------------------------------------

    choose_strategy: Callable[..., Choice]

    def update(self) -> bool:
        """Update the weights at the end of a window; return whether that was done."""
        raise NotImplementedError

    def wrap(self, model: nn.Module) -> Any:
        """Return the model, wrapped as the strategy requires."""
        raise NotImplementedError

    def train_step(self, batch: tuple[Tensor, Tensor]) -> StepMetrics:
        """Take one step."""
        raise NotImplementedError

    def save_checkpoint(self, is_best: bool = False) -> Any:
        """Save all that a training needs to continue."""
        raise NotImplementedError

    def load_checkpoint(self, best: bool = False) -> int:
        """Load the latest or the best checkpoint; return its step."""
        raise NotImplementedError

    def get_performance_metrics(self) -> dict[str, float]:
        """Return means over all ranks."""
        raise NotImplementedError

    # Its helpers ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time in seconds, once all work in the device's stream is done."""
        return now(self.device)

    def no_sync(self, active: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which exercise 11's model sends no gradients, if `active`; FSDP always reduces them."""
        model: Any = self.model
        return model.no_sync() if active and hasattr(model, "no_sync") else contextlib.nullcontext()

    def autocast(self) -> torch.autocast:
        """Return the context in which to compute the forward pass and the loss."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def begin_step(self, batch: tuple[Tensor, Tensor]) -> tuple[float, float, list[tuple[Tensor, Tensor, float]]]:
        """Return the time, `self.waits.seconds`, and the microbatches: inputs, targets, and their share of the samples.

        Raises ValueError if there is not a sample for each.
        """
        require_batch(batch, self.accumulation_steps)
        began = self.now()
        inputs, targets = (
            tensor.to(self.device, non_blocking=True).tensor_split(self.accumulation_steps) for tensor in batch
        )
        samples = len(batch[1])
        parts = [(x, target, len(target) / samples) for x, target in zip(inputs, targets, strict=True)]
        return began, self.waits.seconds, parts

    def finish_step(self, loss: Tensor, samples: int, began: float, waited: float) -> StepMetrics:
        """Count a step that began at that time, when `self.waits.seconds` was `waited`; log it."""
        seconds, waiting = self.now() - began, self.waits.seconds - waited
        self.totals.add(samples, seconds - waiting, waiting)
        self.steps += 1
        self.monitor.log_step_metrics(self.steps, loss, samples)
        return StepMetrics(loss.detach(), seconds - waiting, waiting)

    def make_alike(self) -> None:
        """Give all ranks the means of what differs among them: statistics of norms, and residuals of a compressor."""
        buffers = float_buffers(self.model) + ([] if self.average is None else self.average.buffers)
        average_over_ranks(buffers)
        if "compressor" in self.extra:
            self.extra["compressor"].make_alike()

    def close(self) -> None:
        """Write what the monitor has not written yet."""
        self.monitor.close()


def window_of(accumulator: Any, trainer: TrainerBase) -> Any:
    """Return exercise 05's window of microbatches for a model that averages gradients itself: at its end the trainer
    updates the weights."""

    class Window(accumulator):  # type: ignore[misc]  # the learner's class
        def flush(self) -> bool:
            self.microbatches, self.samples = 0, 0.0
            return trainer.update()

    return Window(trainer.model, trainer.optimizer, trainer.accumulation_steps)
