"""The mean of a batch whose samples lie on several ranks: each rank's share of it, and the sum of all gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup


def share_of_samples(samples: int, device: torch.device, group: ProcessGroup | None = None) -> Tensor:
    """Return `samples` over the number of samples of all ranks, a float32 scalar; NaN if there are none anywhere.

    Takes one all-reduce of a number.
    """
    total = torch.full((1,), float(samples), device=device)
    dist.all_reduce(total, group=group)
    return (samples / total).squeeze()


def all_reduce_gradients(parameters: Sequence[nn.Parameter], group: ProcessGroup | None = None) -> None:
    """Replace each gradient by its sum over the group, in the parameter's dtype; None stays None if no rank has one.

    One all-reduce for each dtype: all gradients of that dtype, followed by a flag for each parameter, 1 if this rank
    has its gradient. A sum may overflow where no part did; it then overflows on every rank.
    """
    for dtype in sorted({parameter.dtype for parameter in parameters}, key=str):
        alike = [parameter for parameter in parameters if parameter.dtype == dtype]
        sizes = [parameter.numel() for parameter in alike]
        flat = torch.zeros(sum(sizes) + len(sizes), dtype=dtype, device=alike[0].device)
        *sums, present = flat.split([*sizes, len(sizes)])
        present.copy_(torch.tensor([parameter.grad is not None for parameter in alike]))
        for parameter, part in zip(alike, sums, strict=True):
            if parameter.grad is not None:
                part.view(parameter.shape).copy_(parameter.grad)
                parameter.grad = None
        dist.all_reduce(flat, group=group)
        for parameter, part, count in zip(alike, sums, present.tolist(), strict=True):
            parameter.grad = part.view(parameter.shape) if count else None
