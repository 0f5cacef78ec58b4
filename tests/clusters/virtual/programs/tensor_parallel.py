"""DTensor, tensor parallel, and tensor parallel under FSDP: losses and shards by name of the variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(8, 12))


def split(mesh: DeviceMesh) -> torch.nn.Module:
    plan: dict[str, Any] = {"2": ColwiseParallel(output_layouts=Replicate())}
    for block in "01":
        plan |= {f"{block}.up": ColwiseParallel(), f"{block}.down": RowwiseParallel()}
    return parallelize_module(network(), mesh, plan)


def split_sequence(mesh: DeviceMesh) -> torch.nn.Module:
    plan: dict[str, Any] = {
        "0": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True),
        "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for block in "01":
        plan |= {
            f"{block}.norm": SequenceParallel(),
            f"{block}.up": ColwiseParallel(input_layouts=Shard(1)),
            f"{block}.down": RowwiseParallel(output_layouts=Shard(1)),
        }
    return parallelize_module(network(), mesh, plan)


def train(model: torch.nn.Module, data_rank: int = 0) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        torch.manual_seed(100 * step + data_rank)
        loss = model(torch.randn(2, n, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_fsdp() -> list[float]:
    model = split(grid["model"])
    for layer in (*model.children(), model):
        fully_shard(layer, mesh=grid["data"])
    return train(model, grid["data"].get_local_rank())


def with_loss_parallel() -> list[float]:
    """Ranks leave loss_parallel() at different times, which must not disable it for the others."""
    torch.manual_seed(0)
    model = parallelize_module(torch.nn.Linear(8, 12), flat, ColwiseParallel(use_local_output=False))
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(model(torch.randn(6, 8)), torch.arange(6))
        if rank == 0:
            dist.barrier()
        loss.backward()
    if rank:
        dist.barrier()
    assert isinstance(loss, DTensor)
    return [loss.full_tensor().item(), model.weight.grad.full_tensor().square().sum().item()]


def redistributed() -> list[Any]:
    rows = distribute_tensor(torch.arange(4.0 * n * n).view(2 * n, 2 * n), flat, [Shard(0)])
    uneven = distribute_tensor(torch.arange(10.0), flat, [Shard(0)])
    tiles = distribute_tensor(torch.arange(64.0).view(8, 8), grid, [Shard(0), Shard(1)])
    partial = DTensor.from_local(torch.full((n,), float(rank)), flat, [Partial()])
    results = [
        rows.redistribute(placements=[Shard(1)]).to_local(),
        (rows @ rows.t()).full_tensor(),
        uneven.to_local(),
        uneven.redistribute(placements=[Replicate()]).to_local(),
        tiles.redistribute(placements=[Shard(1), Replicate()]).to_local(),
        partial.redistribute(placements=[Shard(0)]).to_local(),
        partial.full_tensor(),
    ]
    return [result.tolist() for result in results]


flat = init_device_mesh("cpu", (n,))
grid = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("data", "model"))
ways: dict[str, Callable[[], Any]] = {
    "columns and rows": lambda: train(split(flat)),
    "sequence parallel": lambda: train(split_sequence(flat)),
    "with FSDP": with_fsdp,
    "loss_parallel": with_loss_parallel,
    "redistribute": redistributed,
}
{name: way() for name, way in ways.items()}
