"""Exercise 08's functions on a rank, for its checks, and the results of one process.

crossing(name, x, gradient, ...)            on a rank: one of the four functions, forward and backward
losses(logits, targets, vocab_size, ...)    on a rank: the loss of its logits, and their gradient
whole_loss(logits, targets, ...)            one process, with all logits
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor


def part(size: int, rank: int, ranks: int) -> slice:
    """Return the places of a dimension of this size that are a rank's part."""
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def crossing(
    name: str, x: Tensor, gradient: Tensor, group: Any = None, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """On a rank: run one of the four functions, forward and backward; return also its input afterwards."""
    from labkit.exercises import tensor_parallel

    inputs = x.clone().requires_grad_()
    given = inputs * 1
    out = getattr(tensor_parallel, name)(given, group, **(options or {}))
    out.backward(gradient)
    return {"out": out.detach(), "gradient": inputs.grad, "input": given.detach()}


def losses(
    logits: Tensor, targets: Tensor, vocab_size: int, factor: float = 1.0, mark: Any = None, **options: Any
) -> dict[str, Any]:
    """On a rank: return the loss of this rank's logits, and the gradient of `factor` times it.

    `mark` is called before the forward pass, before the backward pass and after it.
    """
    from labkit.exercises import tensor_parallel

    own = logits.clone().requires_grad_()
    marked = mark or (lambda: None)
    marked()
    loss = tensor_parallel.vocab_parallel_cross_entropy(own, targets, vocab_size, **options)
    marked()
    (factor * loss).backward()
    marked()
    return {"loss": loss.detach(), "gradient": own.grad}


def whole_loss(logits: Tensor, targets: Tensor, factor: float = 1.0, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of all logits, (..., vocab), and the gradient of `factor` times it."""
    own = logits.clone().requires_grad_()
    loss = F.cross_entropy(own.flatten(0, -2), targets.flatten(), **options)
    (factor * loss).backward()
    assert own.grad is not None
    return loss.detach(), own.grad
