"""GPU memory of a training: its size, and what optimizer state, activations and a model's largest unit need of it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from labkit.clusters.virtual.device import memory
from labkit.course.phase3_multi_node.zero.given.units import unit_modules
from labkit.torch_versions.tensors import storage_key

GB = 1e9
FREE_SHARE = 0.9
"""Share of a GPU's memory that a training can plan with: the rest is the context, workspaces and fragmentation."""


def device_memory_gb(device: torch.device) -> float:
    """Return the memory that this rank can plan with, in 1e9 bytes: its GPU's; without one, its share of the host's."""
    modelled = memory.device()
    if modelled is not None:
        return FREE_SHARE * modelled.topology.gpu.memory_gb
    if device.type == "cuda":
        return FREE_SHARE * torch.cuda.get_device_properties(device).total_memory / GB
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal"))
    return FREE_SHARE * 1024 * kib / GB / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def optimizer_bytes(make_optimizer: Callable[..., Optimizer], ema: bool) -> float:
    """Return the bytes of optimizer state for each parameter, from a step with 64 of them. ema: 4 more."""
    parameter = nn.Parameter(torch.zeros(64))
    optimizer = make_optimizer([parameter])
    parameter.grad = torch.zeros(64)
    optimizer.step()
    state = optimizer.state[parameter].values()
    moments = sum(value.nbytes for value in state if isinstance(value, Tensor) and value.shape == parameter.shape)
    return moments / 64 + 4 * ema


def unit_gb(model: nn.Module) -> float:
    """Return the size of the largest unit of parameters that exercise 15 gathers at once, in 1e9 bytes."""
    units = [_nbytes(unit.parameters()) for unit in unit_modules(model).values()]
    return max([_nbytes(model.parameters()) - sum(units), *units]) / GB


def activation_gb(model: nn.Module, shape: Iterable[int], checkpointed: bool = False) -> float:
    """Return the memory of the tensors that one sample of that shape keeps for the backward pass: 1e9 bytes, float32.

    checkpointed: each unit keeps only its inputs, and one unit at a time the rest. Runs on the meta device.
    """
    skeleton = copy.deepcopy(model).to("meta")
    held = (*skeleton.parameters(), *skeleton.buffers())
    own = {storage_key(tensor.untyped_storage()) for tensor in held}
    kept: dict[int, Tensor] = {}
    """Saved tensors by their storage: several operators may save the same one."""
    within, largest = [0.0], [0.0]

    def pack(tensor: Tensor) -> Tensor:
        key = storage_key(tensor.untyped_storage())
        if key not in own:
            kept[key] = tensor
        return tensor

    def begin(module: nn.Module, inputs: Any) -> None:
        within[0] = total()

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        largest[0] = max(largest[0], total() - within[0])
        within.append(total() - within[0] - sum(x.nbytes for x in inputs if isinstance(x, Tensor)))

    def total() -> float:
        return float(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()))

    if checkpointed:
        for unit in unit_modules(skeleton).values():
            unit.register_forward_pre_hook(begin)
            unit.register_forward_hook(end)
    # two samples, so that norms over the batch work
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        skeleton(torch.empty(2, *shape, device="meta"))
    saved = max(0.0, sum(within[1:]) - largest[0]) if checkpointed else 0.0
    return max(0.0, total() - saved) / 2 / GB


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
