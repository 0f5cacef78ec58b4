"""Collectives of single tensors under the names of torch 2.13, which older versions lack."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
_REDUCE_SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"


# found at each call, since a monitor replaces torch's functions to time them
def all_gather_single(*args: Any, **options: Any) -> Any:
    """`all_gather_single(output, input, group=None, async_op=False)`: all ranks' inputs, one after another."""
    return getattr(dist, _ALL_GATHER)(*args, **options)


def reduce_scatter_single(*args: Any, **options: Any) -> Any:
    """`reduce_scatter_single(output, input, op=SUM, group=None, async_op=False)`: this rank's part of the sum."""
    return getattr(dist, _REDUCE_SCATTER)(*args, **options)
