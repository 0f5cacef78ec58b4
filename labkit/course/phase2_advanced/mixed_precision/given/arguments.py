"""Argument checks of a training step in mixed precision."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase2_advanced.mixed_precision.given.master_weights import HALVES, PairedOptimizer


def check_step(
    model: nn.Module,
    optimizer: Optimizer | PairedOptimizer,
    batch: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    max_norm: float | None,
    group: ProcessGroup | None,
    *,
    scaled: bool,
) -> None:
    """Raise ValueError with name and value of an argument that cannot be used. Sends nothing.

    scaled: whether there is a scaler; unscaling takes gradients in float32.
    """
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
    if dtype not in (*HALVES, torch.float32):
        raise ValueError(f"dtype must be float16, bfloat16 or float32, got {dtype}")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    trained = {id(p): p.dtype for p in model.parameters() if p.requires_grad}
    if not trained:
        raise ValueError(f"model must have a parameter that is trained, got {type(model).__name__} without one")
    inner, pairs = (optimizer.optimizer, optimizer.pairs) if isinstance(optimizer, PairedOptimizer) else (optimizer, [])
    known = {id(p) for p in model.parameters()} | {id(master) for p, master in pairs if id(p) in trained}
    if foreign := sum(id(p) not in known for entry in inner.param_groups for p in entry["params"]):
        raise ValueError(f"optimizer must hold parameters of model only, got {foreign} others")
    if scaled and torch.float16 in trained.values() and not pairs:
        raise ValueError("optimizer must be MasterWeights for parameters in torch.float16, got one of theirs")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        raise ValueError(f"batch must be a pair of tensors, inputs and targets, got {type(batch).__name__}")
    inputs, targets = batch
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets)):
        shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"batch must have as many inputs as targets, along the first dimension, got {shapes}")
