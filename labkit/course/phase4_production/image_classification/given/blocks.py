"""A model's blocks, each to be computed again in the backward pass instead of kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from labkit.course.phase3_multi_node.zero.given.unit_hooks import within_backward
from labkit.course.phase3_multi_node.zero.given.units import BATCH_NORMS, unit_modules


def checkpoint_blocks(model: nn.Module, checkpoint: Callable[..., Any]) -> None:
    """Have exercise 07's `checkpoint` call each item of the model's outermost lists of modules.

    Names of parameters stay. Norms count a batch once: their statistics do not move when a block is computed again.
    """
    for block in unit_modules(model).values():
        block.forward = _checkpointed(block, block.forward, checkpoint)


def _checkpointed(block: nn.Module, forward: Callable[..., Any], checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    norms = [module for module in block.modules() if isinstance(module, BATCH_NORMS)]

    def once(*inputs: Any) -> Any:
        if not within_backward():
            return forward(*inputs)
        before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum = 0.0
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked = norm.num_batches_tracked.clone()  # a copy to be dropped
        try:
            return forward(*inputs)
        finally:
            for norm, (momentum, count) in zip(norms, before, strict=True):
                norm.momentum, norm.num_batches_tracked = momentum, count

    return lambda *inputs: checkpoint(once, *inputs)
