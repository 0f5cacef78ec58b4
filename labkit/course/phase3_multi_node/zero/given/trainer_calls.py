"""What the trainers of this exercise, `FSDPTrainer` and `ZeROTrainer`, do beside sharding: as exercise 11's
`DDPTrainer`, on torch alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DistributedSampler

from labkit.course.phase1_data_parallel.process_group.given.arguments import metric_value
from labkit.course.phase1_data_parallel.trainer.given.arguments import require_schedule
from labkit.course.training_step import TrainingStep


class TrainerCalls(TrainingStep):
    """Base of both. See there for the arguments."""

    def setup_distributed(self) -> torch.device:
        """Join the process group, unless this process has one; return the device for this rank's tensors."""
        gpu = self.config.backend == "nccl" and torch.cuda.is_available()
        self.device = torch.device("cuda", self.config.local_rank) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            names = "backend", "init_method", "world_size", "rank"
            dist.init_process_group(**{name: getattr(self.config, name) for name in names})
        return self.device

    def create_distributed_sampler(
        self, dataset_size: int, shuffle: bool = True, seed: int = 0
    ) -> DistributedSampler[int]:
        """Return the sampler of this rank's part of the data, which is as long as the others'."""
        ranks = self.config.world_size, self.config.rank
        return DistributedSampler(range(dataset_size), *ranks, shuffle=shuffle, seed=seed, drop_last=True)  # type: ignore[arg-type]  # it uses only the length

    def learning_rate_now(self) -> float:
        """Return the learning rate of step number `self.steps`."""
        base, warmup = self.schedule["base_batch_size"], self.schedule["warmup_steps"]
        require_schedule(self.global_batch_size, base, self.steps, warmup)
        rates = self.learning_rate, self.learning_rate * self.global_batch_size / base
        # without a warm-up, the last rate at once
        return float(np.interp(self.steps, (0 if warmup else -1, warmup), rates))

    def all_reduce_metrics(self, metrics: Mapping[str, float | Tensor]) -> dict[str, float]:
        """Return the mean of each metric over the ranks, in one collective: numbers, or tensors of one element."""
        names = sorted(metrics)
        values = [metric_value(name, metrics[name]) for name in names]
        means = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(means)
        return dict(zip(names, (means / dist.get_world_size()).tolist(), strict=True))

    @staticmethod
    def is_main_process() -> bool:
        """Return whether this is rank 0, which prints and saves; True, too, if there is no group."""
        return not dist.is_initialized() or dist.get_rank() == 0

    @staticmethod
    def barrier() -> None:
        """Return when all ranks have called it. Does nothing if there is no group."""
        if dist.is_initialized():
            dist.barrier()

    @staticmethod
    def cleanup() -> None:
        """Leave the process group and end it. Does nothing if there is none, so it may be called twice."""
        if dist.is_initialized():
            dist.destroy_process_group()
