"""`FSDPTrainer`: the sibling of exercise 11's `DDPTrainer` on torch's own `fully_shard` (FSDP2).

It takes the same config and the same calls, and needs no module of yours: groups, sampler and sharding are torch's. So
what your own `FullyShardedDataParallel` does can be compared with it (Zhao et al. 2023, "PyTorch FSDP";
pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DistributedSampler

from labkit.course.arguments import one_of, optional, require
from labkit.course.phase1_data_parallel.process_group.given.arguments import metric_value
from labkit.course.phase1_data_parallel.trainer.given.arguments import require_schedule
from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together
from labkit.course.training_step import TrainingStep

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)


class FSDPTrainer(TrainingStep):
    """Trains a model whose parameters, gradients and optimizer state are sharded over all ranks.

    config: exercise 01's `DDPConfig`. batch_size: each rank's. learning_rate: the one for `base_batch_size` samples; in
    `warmup_steps` steps it grows to the one for all ranks' (Goyal et al. 2017).
    mixed_precision: torch.bfloat16 to gather parameters and compute in it; shards, gradients' means and optimizer stay
    in the parameters' dtype. cpu_offload: shards, their gradients and the optimizer's step are on the CPU.
    activation_checkpointing: each unit keeps only its inputs and runs its forward pass again in the backward pass.
    Raises ValueError for an argument that cannot be used.
    """

    def __init__(
        self,
        config: Any,
        learning_rate: float,
        batch_size: int,
        base_batch_size: int = 256,
        warmup_steps: int = 0,
        *,
        mixed_precision: torch.dtype | None = None,
        cpu_offload: bool = False,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__(config, learning_rate, batch_size, base_batch_size, warmup_steps)
        # float16 loses small gradients without a loss scale, which train_step does not have
        require("mixed_precision", mixed_precision, optional(one_of(torch.bfloat16)))
        self.mixed_precision, self.cpu_offload = mixed_precision, cpu_offload
        self.activation_checkpointing = activation_checkpointing

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

    def wrap_model_fsdp(
        self,
        model: nn.Module,
        make_optimizer: Callable[..., Optimizer],
        unit_types: type[nn.Module] | tuple[type[nn.Module], ...] = (),
    ) -> nn.Module:
        """Shard the model in place, by units; make its optimizer, `make_optimizer(parameters, lr=...)`.

        Weights and buffers start as the first rank has them. A unit is gathered before it computes and freed after.
        unit_types: the classes of modules that are units; without it, the model's children and those of its lists are.
        Returns the model, whose parameters are DTensors.
        """
        self.model = model.to(self.device)
        broadcast_together([*model.parameters(), *model.buffers()], None)
        options: dict[str, Any] = {"mesh": init_device_mesh(self.device.type, (self.config.world_size,))}
        if self.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        precision: dict[str, Any] = {}
        if self.mixed_precision is not None:
            precision = {"param_dtype": self.mixed_precision, "reduce_dtype": torch.float32}
        for unit in sharding_units(model, unit_types):
            if self.activation_checkpointing:
                # instead of a wrapper, which would change the parameters' names
                unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)
            fully_shard(unit, mp_policy=MixedPrecisionPolicy(**precision), **options)
        if self.mixed_precision is not None:
            precision["output_dtype"] = torch.float32  # the loss is computed from the outputs
        fully_shard(model, mp_policy=MixedPrecisionPolicy(**precision), **options)
        self.optimizer = make_optimizer(model.parameters(), lr=self.learning_rate)
        return model

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


def sharding_units(model: nn.Module, unit_types: type[nn.Module] | tuple[type[nn.Module], ...] = ()) -> list[nn.Module]:
    """Return the modules inside `model` that are gathered one by one; all others form the model's own unit.

    unit_types: as in `FSDPTrainer.wrap_model_fsdp`. Modules that share a parameter with another unit or with the model
    itself are left out: torch does not shard them apart. So are modules without parameters.
    """
    units = [unit for unit in _candidates(model, unit_types) if any(True for _ in unit.parameters())]
    inside = {module for unit in units for module in unit.modules()}
    users: dict[nn.Parameter, set[nn.Module]] = defaultdict(set)
    for unit in units:
        for parameter in unit.parameters():
            users[parameter].add(unit)
    for module in set(model.modules()) - inside:
        for parameter in module.parameters(recurse=False):
            users[parameter].add(model)
    sharing = {module for modules in users.values() if len(modules) > 1 for module in modules}
    return [unit for unit in units if unit not in sharing]


def _candidates(module: nn.Module, unit_types: type[nn.Module] | tuple[type[nn.Module], ...]) -> list[nn.Module]:
    units = []
    for child in module.children():
        if isinstance(child, unit_types) if unit_types else not isinstance(child, _CONTAINERS):
            units.append(child)
        else:
            units += _candidates(child, unit_types)
    return units
