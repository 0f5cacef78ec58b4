"""Argument checks of gradient accumulation. Each raises ValueError with the argument's name and value."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase1_data_parallel.trainer.given.arguments import require_trainable


def check_accumulator(
    model: nn.Module, optimizer: Optimizer, steps: int, max_norm: float | None, group: ProcessGroup | None
) -> None:
    """Check the arguments of an accumulator; sends nothing."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number above 0, got {steps!r}")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, or None, got {max_norm!r}")
    require_trainable(model, optimizer)


def check_loss(loss: Tensor, samples: float) -> None:
    """Check a microbatch's mean loss and its number of samples, 0 or more."""
    if not 0 <= samples < math.inf:
        raise ValueError(f"samples must be 0 or more, got {samples!r}")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        seen = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss must be a tensor of one element, got {seen}")
    if samples and not loss.requires_grad:
        raise ValueError(f"loss must have a graph to go back through, got {loss!r}")
