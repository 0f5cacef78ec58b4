"""Collectives of single tensors under the names of torch 2.13, which older versions lack."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_names: Any = dist
all_gather_single: Any = getattr(_names, "all_gather_single", dist.all_gather_into_tensor)
"""`all_gather_single(output, input, group=None, async_op=False)`: all ranks' inputs, one after another."""
reduce_scatter_single: Any = getattr(_names, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""`reduce_scatter_single(output, input, op=SUM, group=None, async_op=False)`: this rank's part of the sum of inputs."""
