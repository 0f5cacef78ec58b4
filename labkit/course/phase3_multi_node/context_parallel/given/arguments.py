"""Arguments of context parallelism, checked before any message is sent."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.arguments import integer, one_of, require, shown, tensor
from labkit.course.collective_arguments import group_ranks, require_this_rank

LAYOUTS = ("contiguous", "zigzag")


def check_split(x: Any, group: ProcessGroup | None, layout: str, dim: int) -> tuple[int, int]:
    """Check that dimension `dim` of x can be cut into equal parts; return this rank in the group, and its size."""
    ranks = len(group_ranks(group))
    chunks = ranks * _chunks(layout)
    length = _length(x, dim)
    if length % chunks:
        raise ValueError(f"x must have a multiple of {chunks} elements in dimension {dim}, got {length}: pad it")
    return dist.get_rank(group), ranks


def check_merge(x: Any, group: ProcessGroup | None, layout: str, dim: int) -> int:
    """Check that x may be a rank's part; return the size of the group."""
    ranks = len(group_ranks(group))
    if _length(x, dim) % _chunks(layout):
        raise ValueError(f"x must have an even number of elements in dimension {dim}, got {x.shape[dim]}")
    return ranks


def check_attention(q: Any, k: Any, v: Any, group: ProcessGroup | None, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    """Check the arguments of an attention over ranks; return q, k and v, contiguous."""
    require_this_rank(group)
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(name, x, tensor(("batch", "heads", "tokens", "head_dim"), floating_point=True))
        if not x.numel():
            raise ValueError(f"{name} must have elements, got {shown(x)}")
    if (k.shape[0], *k.shape[2:], k.dtype) != (q.shape[0], *q.shape[2:], q.dtype):
        raise ValueError(f"k must have shape and dtype of q, {shown(q)}, but for the heads, got {shown(k)}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"k must have a number of heads that divides q's {q.shape[1]}, got {k.shape[1]}")
    if (v.shape, v.dtype) != (k.shape, k.dtype):
        raise ValueError(f"v must have shape and dtype of k, {shown(k)}, got {shown(v)}")
    if q.shape[2] % _chunks(layout):
        raise ValueError(f"q must have an even number of tokens in layout {layout!r}, got {q.shape[2]}")
    return q.contiguous(), k.contiguous(), v.contiguous()


def check_heads(q: Tensor, k: Tensor, group: ProcessGroup | None) -> int:
    """Check that the heads of q, and those of k or copies of them, can be divided among the ranks; return the ranks."""
    ranks = dist.get_world_size(group)
    if q.shape[1] % ranks:
        raise ValueError(f"q must have a multiple of {ranks} heads, some for each rank, got {q.shape[1]}")
    if k.shape[1] % ranks and ranks % k.shape[1]:
        raise ValueError(f"k must have a multiple of {ranks} heads, or a number that divides it, got {k.shape[1]}")
    return ranks


def _chunks(layout: str) -> int:
    """Return the number of chunks in a rank's part."""
    require("layout", layout, one_of(*LAYOUTS))
    return 2 if layout == "zigzag" else 1


def _length(x: Any, dim: int) -> int:
    require("x", x, tensor())
    require("dim", dim, integer(at_least=-x.dim(), below=x.dim()))
    length: int = x.shape[dim]
    return length
