"""Right: each rank gathers all tensors and sums them itself. TODO(author): other ways to write your exercise."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["total"]


def total(tensor):
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor)
    return tensor.copy_(torch.stack(rows).sum(0))
