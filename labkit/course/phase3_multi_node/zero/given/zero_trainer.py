"""`ZeROTrainer`: training as a `ZeROConfig` says, by the learner's own classes of this exercise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from labkit.course.arguments import instance_of, require
from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together
from labkit.course.phase3_multi_node.zero.given.config import ZeROConfig
from labkit.course.phase3_multi_node.zero.given.disk_optimizer import DiskOptimizer
from labkit.course.phase3_multi_node.zero.given.host_optimizer import HostOptimizer
from labkit.course.phase3_multi_node.zero.given.trainer_calls import TrainerCalls

_ONE_BUCKET = 1e9
"""MiB of a bucket that takes all gradients: it leaves when the backward pass is over."""


class ZeROTrainer(TrainerCalls):
    """Trains a model whose states are sharded, and offloaded, as `zero` says.

    config: exercise 01's `DDPConfig`. The others are those of `FSDPTrainer`, as are the calls, but for `wrap_model`.
    Stage 0 is torch's DDP, stages 1 and 2 are your `ZeroOptimizer`, and stage 3 your `FullyShardedDataParallel`. Of
    what is offloaded, gradients of stage 2 come to the host when the optimizer steps; with `offload_params` gradients
    and optimizer state are where parameters are. Raises ValueError for an argument that cannot be used.
    """

    def __init__(
        self,
        config: Any,
        zero: ZeROConfig,
        learning_rate: float,
        batch_size: int,
        base_batch_size: int = 256,
        warmup_steps: int = 0,
    ) -> None:
        require("zero", zero, instance_of(ZeROConfig, "a ZeROConfig"))
        super().__init__(config, learning_rate, batch_size, base_batch_size, warmup_steps)
        self.zero = zero

    def wrap_model(self, model: nn.Module, make_optimizer: Callable[..., Optimizer]) -> nn.Module:
        """Shard the model or its optimizer, `make_optimizer(parameters, lr=...)`; return the model to call.

        Weights and buffers start as the first rank has them.
        """
        from labkit.exercises import zero  # the learner's, which imports this

        model, bucket_cap_mb = model.to(self.device), 25 if self.zero.overlap_comm else _ONE_BUCKET
        make = self._offloaded(make_optimizer)
        if self.zero.stage == 0:
            # torch's own DDP casts the size of a bucket to bytes in 32 bits
            self.model = DistributedDataParallel(model, bucket_cap_mb=min(bucket_cap_mb, 2**10))
            self.optimizer = make(self.model.parameters(), lr=self.learning_rate)
        elif self.zero.stage < 3:
            broadcast_together(model.buffers(), None)
            self.model, options = model, {"bucket_cap_mb": bucket_cap_mb, "lr": self.learning_rate}
            self.optimizer = zero.ZeroOptimizer(model.parameters(), make, self.zero.stage, **options)
        else:
            offload, folder = self.zero.offload_params, self.zero.nvme_path
            sharded = zero.FullyShardedDataParallel(model, cpu_offload=offload, prefetch=self.zero.overlap_comm)
            if offload and folder is not None:
                sharded.keep_in_files(folder)
            self.model = sharded
            trained = [parameter for parameter in sharded.parameters() if parameter.requires_grad]
            self.optimizer = make(trained, lr=self.learning_rate)
        return self.model

    def _offloaded(self, make_optimizer: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
        """Return what makes the optimizer, with its state where `zero` says."""
        if self.zero.nvme_path is not None and (self.zero.offload_optimizer or self.zero.offload_params):
            folder = Path(self.zero.nvme_path) / "optimizer"
            return functools.partial(DiskOptimizer, optimizer_class=make_optimizer, folder=folder)
        if self.zero.offload_optimizer and not self.zero.offload_params:  # else shards are there already
            return functools.partial(HostOptimizer, optimizer_class=make_optimizer)
        return make_optimizer
