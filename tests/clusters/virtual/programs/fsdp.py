"""Fully sharded data parallel: losses by name of the variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    first, second, last = torch.nn.Linear(8, 7), torch.nn.Linear(7, 7), torch.nn.Linear(7, 5)
    return torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Dropout(0.2), second, last)


def sharded(mesh: DeviceMesh, **options: Any) -> torch.nn.Module:
    """Shard every layer separately, so that layers are gathered one after the other."""
    model = network()
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def train(model: torch.nn.Module, accumulate: int = 1, clip: float | None = None) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        for microbatch in range(accumulate):
            if accumulate > 1:
                model.set_requires_gradient_sync(microbatch + 1 == accumulate)
            loss = model(torch.randn(3, 8)).float().pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        if clip is not None:
            losses.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def version_1(strategy: ShardingStrategy) -> list[float]:
    return train(FullyShardedDataParallel(network(), sharding_strategy=strategy, device_id=torch.device("cpu")))


def whole_state() -> list[float]:
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    return [value.sum().item() for value in model.state_dict().values()]


flat = init_device_mesh("cpu", (n,))
grid = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicate", "shard"))
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
reduced_in_half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
ways: dict[str, Callable[[], Any]] = {
    "fully_shard": lambda: train(sharded(flat)),
    "gradient accumulation": lambda: train(sharded(flat), accumulate=3),
    "clipped gradients": lambda: train(sharded(flat), clip=0.1),
    "mixed precision": lambda: train(sharded(flat, mp_policy=half)),
    "mixed precision, reduced in bfloat16": lambda: train(sharded(flat, mp_policy=reduced_in_half)),
    "stays gathered after forward": lambda: train(sharded(flat, reshard_after_forward=False)),
    "gathered in pairs after forward": lambda: train(sharded(flat, reshard_after_forward=2)),
    "hybrid sharding": lambda: train(sharded(grid)),
    "version 1": lambda: version_1(ShardingStrategy.FULL_SHARD),
    "version 1, gradients and optimizer": lambda: version_1(ShardingStrategy.SHARD_GRAD_OP),
    "version 1, state_dict": whole_state,
}
{name: way() for name, way in ways.items()}
