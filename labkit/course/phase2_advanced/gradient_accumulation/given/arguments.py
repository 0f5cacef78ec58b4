"""Arguments of gradient accumulation, checked before any message is sent."""

from __future__ import annotations

from math import inf

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.arguments import Rule, integer, number, optional, require, shown
from labkit.course.collective_arguments import require_this_rank
from labkit.course.phase1_data_parallel.trainer.given.arguments import require_trainable

_SAMPLES = Rule("be a number from 0", lambda value: 0 <= value < inf)  # that may be a tensor, such as the sum of a mask
_LOSS = Rule("be a tensor of one element", lambda value: isinstance(value, Tensor) and value.numel() == 1)


def check_accumulator(
    model: nn.Module, optimizer: Optimizer, steps: int, max_norm: float | None, group: ProcessGroup | None
) -> None:
    """Check the arguments of an accumulator; sends nothing."""
    require_this_rank(group)
    require("steps", steps, integer(at_least=1))
    require("max_norm", max_norm, optional(number(above=0, infinite=True)))
    require_trainable(model, optimizer)


def check_loss(loss: Tensor, samples: float) -> None:
    """Check a microbatch's mean loss and its number of samples, 0 or more."""
    require("samples", samples, _SAMPLES)
    require("loss", loss, _LOSS)
    if samples and not loss.requires_grad:
        raise ValueError(f"loss must have a graph to go back through, got {shown(loss)}")
