"""DDP with a comm hook: gradients compressed to 8 bits (exercise 13), or reduced in two levels (exercise 12)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.phase4_production.scaling_study.given import (
    MakeWorkload,
    Workload,
    made_at_first_call,
    optimizer_step,
)


def training(
    variant: str, make_model: Callable[[], nn.Module], make_loss: Callable[[nn.Module, int], Tensor]
) -> MakeWorkload:
    """Return a function that makes a workload, as exercise 23's `training` does for plain DDP. On a rank."""
    from labkit.exercises import ddp

    def make(batch_size: int, group: ProcessGroup | None) -> Workload:
        model = make_model()
        wrapped = ddp.DistributedDataParallel(model, group)
        wrapped.register_comm_hook(None, _HOOKS[variant](model, group))
        step = optimizer_step(wrapped, lambda: make_loss(wrapped, batch_size))
        return Workload(step, made_at_first_call(make_model, lambda bare: make_loss(bare, batch_size)))

    return make


def _compression(model: nn.Module, group: ProcessGroup | None) -> Any:
    from labkit.exercises import gradient_compression

    return gradient_compression.compression_hook(gradient_compression.Quantized(8), model, group)


def _hierarchy(model: nn.Module, group: ProcessGroup | None) -> Any:
    """Return a hook that reduces a bucket at once: within the node, between nodes, and within the node again."""
    from labkit.exercises import hierarchical_allreduce

    groups = hierarchical_allreduce.build_node_groups(int(os.environ["LOCAL_WORLD_SIZE"]))

    def hook(state: Any, bucket: Any) -> Any:
        reduced: torch.futures.Future[Tensor] = torch.futures.Future()
        gradients = bucket.buffer()
        hierarchical_allreduce.hierarchical_all_reduce(gradients, *groups, op=torch.distributed.ReduceOp.AVG)
        reduced.set_result(gradients)
        return reduced

    return hook


_HOOKS: dict[str, Callable[[nn.Module, ProcessGroup | None], Any]] = {
    "ddp+compression": _compression,
    "ddp+hierarchy": _hierarchy,
}
