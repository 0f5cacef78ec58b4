"""`FSDPTrainer`: the sibling of exercise 11's `DDPTrainer` on torch's own `fully_shard` (FSDP2).

It takes the same config and the same calls, and needs no module of yours: groups, sampler and sharding are torch's. So
what your own `FullyShardedDataParallel` does can be compared with it (Zhao et al. 2023, "PyTorch FSDP";
pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from labkit.course.arguments import integer, one_of, optional, require
from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together
from labkit.course.phase3_multi_node.zero.given.arguments import require_shard_ranks
from labkit.course.phase3_multi_node.zero.given.trainer_calls import TrainerCalls

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)


class FSDPTrainer(TrainerCalls):
    """Trains a model whose parameters, gradients and optimizer state are sharded over all ranks, or those of a node.

    config: exercise 01's `DDPConfig`. batch_size: each rank's. learning_rate: the one for `base_batch_size` samples; in
    `warmup_steps` steps it grows to the one for all ranks' (Goyal et al. 2017).
    mixed_precision: torch.bfloat16, torch.float16 or torch.float32 to gather parameters and compute in it; shards and
    optimizer stay in the parameters' dtype, and gradients are reduced in float32. float16 has a loss scale, `scaler`:
    an overflow on any rank makes all of them skip the step. cpu_offload: shards, their gradients and the optimizer's
    step are on the CPU; not with float16 on GPUs. activation_checkpointing: each unit keeps only its inputs and runs
    its forward pass again in the backward pass. shard_ranks: so many adjacent ranks, such as those of a node, have the
    model in shards together; gradients are averaged between these groups, too (hybrid sharding). None: all ranks.
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
        shard_ranks: int | None = None,
    ) -> None:
        super().__init__(config, learning_rate, batch_size, base_batch_size, warmup_steps)
        require("mixed_precision", mixed_precision, optional(one_of(torch.bfloat16, torch.float16, torch.float32)))
        require_shard_ranks(shard_ranks, config.world_size)
        if mixed_precision == torch.float16 and cpu_offload and config.backend == "nccl":
            # the ranks agree on an overflow where gradients are, and nccl sends nothing from host memory
            raise ValueError("cpu_offload must be False with mixed_precision torch.float16 on GPUs, got True")
        self.mixed_precision, self.cpu_offload, self.shard_ranks = mixed_precision, cpu_offload, shard_ranks
        self.activation_checkpointing = activation_checkpointing
        self.scaler: GradScaler | None = None
        """Loss scale of float16; None: there is none."""

    def wrap_model_fsdp(
        self,
        model: nn.Module,
        make_optimizer: Callable[..., Optimizer],
        unit_types: type[nn.Module] | tuple[type[nn.Module], ...] = (),
        min_parameters: int | None = None,
    ) -> nn.Module:
        """Shard the model in place, by units; make its optimizer, `make_optimizer(parameters, lr=...)`.

        Weights and buffers start as the first rank has them. A unit is gathered before it computes and freed after.
        unit_types: the classes of modules that are units. min_parameters, instead: modules with so many parameters or
        more are units, those of inner units not counted. Without both, the model's children and those of its lists are.
        Returns the model, whose parameters are DTensors. Raises ValueError for arguments that cannot be used.
        """
        units = sharding_units(model, unit_types, min_parameters)
        self.model = model.to(self.device)
        broadcast_together([*model.parameters(), *model.buffers()], None)
        options: dict[str, Any] = {"mesh": sharding_mesh(self.device, self.config.world_size, self.shard_ranks)}
        if self.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        precision: dict[str, Any] = {}
        if self.mixed_precision is not None:
            precision = {"param_dtype": self.mixed_precision, "reduce_dtype": torch.float32}
        for unit in units:
            if self.activation_checkpointing:
                # instead of a wrapper, which would change the parameters' names
                unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)
            fully_shard(unit, mp_policy=MixedPrecisionPolicy(**precision), **options)
        if self.mixed_precision is not None:
            precision["output_dtype"] = torch.float32  # the loss is computed from the outputs
        fully_shard(model, mp_policy=MixedPrecisionPolicy(**precision), **options)
        self.optimizer = make_optimizer(model.parameters(), lr=self.learning_rate)
        if self.mixed_precision == torch.float16:
            self.scaler = GradScaler(self.device.type)
        return model

    def update(self, loss: Tensor) -> None:
        """Go back from this rank's loss, and update the weights; not on any rank if a gradient of one overflows."""
        if self.scaler is None:
            super().update(loss)
            return
        self.scaler.scale(loss).backward()
        # shards of gradients are DTensors: looking for an overflow in them is a collective of the ranks that share a
        # model, and replicas have the same gradients
        self.scaler.step(self.optimizer)
        self.scaler.update()


def sharding_mesh(device: torch.device, world_size: int, shard_ranks: int | None) -> DeviceMesh:
    """Return the mesh of all ranks over which torch shards, (ranks,); with hybrid sharding (replicas, shard_ranks)."""
    if shard_ranks is None:
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    shape = world_size // shard_ranks, shard_ranks
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def sharding_units(
    model: nn.Module,
    unit_types: type[nn.Module] | tuple[type[nn.Module], ...] = (),
    min_parameters: int | None = None,
) -> list[nn.Module]:
    """Return the modules inside `model` that are gathered one by one, inner ones first; the rest is the model's unit.

    unit_types, min_parameters: as in `FSDPTrainer.wrap_model_fsdp`. Modules that share a parameter with another unit or
    with the model itself are left out: torch does not shard them apart. So are modules without parameters. Raises
    ValueError if both are given.
    """
    require("min_parameters", min_parameters, optional(integer(at_least=1)))
    if unit_types and min_parameters is not None:
        raise ValueError(f"min_parameters must be None with unit_types, which name the units, got {min_parameters}")
    if min_parameters is None:
        units = [unit for unit in _candidates(model, unit_types) if any(True for _ in unit.parameters())]
    else:
        units = _large_modules(model, min_parameters)
    units = [*dict.fromkeys(units)]  # a module may be in several places
    while True:
        owners = {module: unit for unit in reversed(units) for module in unit.modules()}
        users: dict[nn.Parameter, set[nn.Module]] = defaultdict(set)
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                users[parameter].add(owners.get(module, model))
        sharing = {unit for those in users.values() if len(those) > 1 for unit in those}
        if sharing.isdisjoint(units):
            return units
        units = [unit for unit in units if unit not in sharing]


def _candidates(module: nn.Module, unit_types: type[nn.Module] | tuple[type[nn.Module], ...]) -> list[nn.Module]:
    units = []
    for child in module.children():
        if isinstance(child, unit_types) if unit_types else not isinstance(child, _CONTAINERS):
            units.append(child)
        else:
            units += _candidates(child, unit_types)
    return units


def _large_modules(module: nn.Module, least: int) -> list[nn.Module]:
    """Return the modules inside with that many parameters of their own, inner ones first, as torch's
    `size_based_auto_wrap_policy` chooses them. Lists are never called, and attention uses its projection's weights
    without calling it: these are no units."""
    units: list[nn.Module] = []
    for child in module.children():
        within = [] if isinstance(child, nn.MultiheadAttention) else _large_modules(child, least)
        taken = {parameter for unit in within for parameter in unit.parameters()}
        own = sum(parameter.numel() for parameter in child.parameters() if parameter not in taken)
        units += within
        if own >= least and not isinstance(child, (nn.ModuleDict, nn.ModuleList)):
            units.append(child)
    return units
