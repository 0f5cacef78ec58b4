"""The library's all-reduce, as it is."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor, cluster: dict[str, Any]) -> Tensor:
    dist.all_reduce(tensor)
    return tensor
