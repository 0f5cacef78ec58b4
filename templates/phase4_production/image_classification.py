"""Image classification, from the command line to the last epoch, made of your own earlier modules.

The trainer takes any model, and the strategy that fits: whole on each GPU or in shards. The recipe is that of Goyal et
al. (2017), a learning rate in proportion to the global batch, and warm-up, with the cosine of Loshchilov & Hutter
(2017). One command trains digits on a laptop and ImageNet on a cluster: `torchrun ... image_classification.py --help`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.exercises import (  # isort: skip  # your own
    activation_checkpointing, checkpointing, data_loader, ddp, gradient_accumulation, gradient_compression,
    mixed_precision, monitoring, process_group, zero,
)  # fmt: skip
from labkit.course.phase4_production.image_classification import given

__all__ = ["DistributedTrainer", "ImageTrainer", "choose_strategy", "main"]


def choose_strategy(
    num_parameters: int, num_gpus: int, memory_gb: float, activation_gb: float = 0.0, optimizer_bytes: float = 8,
    unit_gb: float = 0.0,
) -> given.Choice:  # fmt: skip
    """Return the fastest strategy that fits into each GPU's memory: DDP, then FSDP, then FSDP with offload to the host.

    Parameters and gradients have 4 bytes, an optimizer `optimizer_bytes` for each. DDP has a bucket for each gradient,
    too. FSDP has, beside shards, three of its largest unit: one computes, one arrives, and one's gradients leave.
    Offloaded shards take nothing. Raises ValueError if nothing fits."""
    given.check_memory(num_parameters, num_gpus, memory_gb, activation_gb=activation_gb, unit_gb=unit_gb)
    # TODO 1. `zero.estimate_memory(num_parameters, num_gpus, stage, state_bytes)["zero_gb"]`; `given.Choice`.
    # YOUR CODE HERE
    raise NotImplementedError()
    raise ValueError(f"memory_gb must be {3 * unit_gb + activation_gb:.3g} or more, even with offload, got {memory_gb}")


class DistributedTrainer(given.TrainerBase):
    """Trains a model on all ranks, each of which calls every method, with batches of equal size.
    DistributedTrainer(model, strategy="auto", mixed_precision="no", gradient_accumulation_steps=1,
    gradient_clip_val=None, activation_checkpointing=False, cpu_offload=False, compression=None, checkpoint_dir=None,
    log_dir=None, *, make_optimizer=partial(AdamW, lr=1e-3), loss_fn=F.cross_entropy, ema_decay=None, ...)
    strategy: "ddp"; "fsdp"; "hybrid", in shards of each node's ranks, or of `shard_ranks`; or "auto", one of the first
    two. mixed_precision: "no", "bf16", "fp16". gradient_clip_val: norm of all gradients. compression: "int8", "onebit",
    "powersgd", "topk", or a compressor. Raises ValueError before any communication.
    """

    choose_strategy, compressors = staticmethod(choose_strategy), gradient_compression
    accumulator, scaler_type = gradient_accumulation.GradientAccumulator, mixed_precision.DynamicLossScaler
    monitor_type, checkpointer_type = monitoring.DistributedTrainingMonitor, checkpointing.DistributedCheckpointer

    def wrap(self, model: nn.Module) -> Any:
        """Return the model in the wrapper of exercise 11 or 15. Buffers are each rank's own: not broadcast."""
        if self.activation_checkpointing:
            given.checkpoint_blocks(model, activation_checkpointing.checkpoint)
        # TODO 2. This one, and the next two. FSDP computes and sends in `self.dtype`; `self.cpu_offload`. With "hybrid"
        # `self.shard_group` has shards of a model, and `self.replica_group` is exercise 15's `hybrid`: both are None
        # with "fsdp". With `self.compressor`, `register_comm_hook(None, hook)` of exercise 13's
        # `compression_hook(compressor, model)`.
        # YOUR CODE HERE
        raise NotImplementedError()

    def train_step(self, batch: tuple[Tensor, Tensor]) -> given.StepMetrics:
        """Take one step with this rank's inputs and targets: that of one process with the samples of all ranks.
        It has `accumulation_steps` microbatches. DDP sends each gradient once, in the last one."""
        began, waited, microbatches = self.begin_step(batch)
        loss = torch.zeros((), device=self.device)  # in the end the mean over this rank's samples, without a graph
        # For each microbatch (inputs, targets, its share of the samples): mean loss in `self.autocast()` and
        # `self.no_sync(active)`; exercise 05's `self.window.backward(...)` of the mean, scaled if there is a
        # `self.scaler`; `self.window.step()`, which calls `update` when the last one is done.
        # YOUR CODE HERE
        raise NotImplementedError()
        return self.finish_step(loss, len(batch[1]), began, waited)

    def update(self) -> bool:
        """Unscale, clip and step; take the weights into `self.average`, if any. Gradients are means over the ranks.
        Returns False if an overflow, on any rank, made all of them skip the step."""
        parameters, overflow = list(self.model.parameters()), False
        # YOUR CODE HERE
        raise NotImplementedError()
        self.optimizer.zero_grad()
        return not overflow

    def components(self) -> dict[str, Any]:
        """Return all that a training needs to continue exactly, by name, and what is in `self.extra`."""
        # TODO 3. This one, and the next three. What changes from step to step, besides the weights?
        # YOUR CODE HERE
        raise NotImplementedError()

    def save_checkpoint(self, is_best: bool = False) -> Any:
        """Save after `self.steps` steps; return the folder. First `self.make_alike()`. Metric "is_best": 0 or 1."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def load_checkpoint(self, best: bool = False) -> int:
        """Load the latest checkpoint, or the last that was best; return its step, now `self.steps`: 0 if none."""
        # YOUR CODE HERE
        raise NotImplementedError()
        return self.steps

    def get_performance_metrics(self) -> dict[str, float]:
        """Return means over ranks of `self.totals.of_a_step()`, by one collective, and two figures that follow:
        samples_per_second_per_gpu in all three times together, and communication_overhead_percent of them."""
        # YOUR CODE HERE
        raise NotImplementedError()


class ImageTrainer(given.Recipe):
    """ImageTrainer(trainer, images, batch_size, epochs, learning_rate, *, warmup_epochs=0, base_batch_size=256, ...)
    batch_size: each rank's in a step. learning_rate: the one for a global batch of `base_batch_size`."""

    sampler_type, prefetch_type = data_loader.ShardedSampler, data_loader.PrefetchLoader

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0: up on a line, with `peak_learning_rate` at step `warmup_steps`,
        and 0 one step before step 0; then down on a cosine, half a period, with 0 at step `total_steps`."""
        # TODO 4. This one, and the next two.
        # YOUR CODE HERE
        raise NotImplementedError()

    def count_hits(self) -> Tensor:
        """Return sums over this rank's test images: loss, hits of the first class, hits of the first five, images.
        `self.test_batches()` yields images, labels, and which of them count: others only fill the last batch."""
        sums = torch.zeros(4, dtype=torch.float64, device=self.trainer.device)
        # YOUR CODE HERE
        raise NotImplementedError()
        return sums

    def fit(self, resume: bool = False) -> dict[str, Any]:
        """Train from epoch `self.progress.epoch` on; return what `self.end_epoch(sums of all ranks)` returns, the last.
        After each step: `self.save_if_due()`."""
        report = self.begin(resume)
        # YOUR CODE HERE
        raise NotImplementedError()
        return report


main = partial(given.main, process_group, DistributedTrainer, ImageTrainer)
if __name__ == "__main__":
    main()
