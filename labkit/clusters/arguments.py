"""Arguments of `Job.call` that are not plain data: marked dicts here, the real thing on the rank.

A job's arguments travel between processes as tensors and plain data. A process group, a reduction and a tensor with
strides exist on a rank only, so a check writes them as `group_of([0, 2, 3])`, `reduce_op("MAX")`, `transposed(tensor)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

_GROUP, _REDUCE_OP, _TRANSPOSED = "labkit:group", "labkit:reduce_op", "labkit:transposed"


def group_of(ranks: Iterable[int]) -> dict[str, Any]:
    """Stands for the process group of these global ranks, which the job has to list in `Job.groups`."""
    return {_GROUP: tuple(ranks)}


def reduce_op(name: str) -> dict[str, Any]:
    """Stands for `torch.distributed.ReduceOp.NAME`: `SUM`, `AVG`, `MAX`, `MIN`, `PRODUCT`, `BAND`, ..."""
    return {_REDUCE_OP: name}


def transposed(tensor: Tensor) -> dict[str, Any]:
    """Stands for `tensor.t()`, which is not contiguous: 2-D, at least 2 x 2."""
    return {_TRANSPOSED: tensor}


def marked_group(value: Any) -> tuple[int, ...] | None:
    """The ranks that `group_of` was given; None for anything else."""
    return tuple(value[_GROUP]) if type(value) is dict and _GROUP in value else None


def on_rank(value: Any, groups: Mapping[tuple[int, ...], Any]) -> Any:
    """What `value` stands for on this rank; anything unmarked is itself. `groups`: the job's, by their ranks."""
    if type(value) is not dict or len(value) != 1:
        return value
    ((kind, body),) = value.items()
    if kind == _GROUP:
        return groups[tuple(body)]
    if kind == _REDUCE_OP:
        return getattr(dist.ReduceOp, body)
    if kind == _TRANSPOSED:
        return body.t()
    return value
