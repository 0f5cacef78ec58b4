"""What a rank asks of the scheduler: to send, to receive, to take part in a collective. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Send:
    """Hand `tensor` to rank `to` (global rank)."""

    group: str
    to: int
    tag: int
    tensor: Tensor
    name: str
    line: str

    def __str__(self) -> str:
        return f"{self.name}(to rank {self.to}, {shown(self.tensor.dtype, self.tensor.numel())})"


@dataclass(slots=True)
class Receive:
    """Take the next message from rank `source` (global rank; None: from anybody) with the same tag."""

    group: str
    source: int | None
    tag: int
    dtype: torch.dtype
    numel: int
    name: str
    line: str

    def __str__(self) -> str:
        source = "any rank" if self.source is None else f"rank {self.source}"
        return f"{self.name}(from {source}, {shown(self.dtype, self.numel)})"


@dataclass(slots=True)
class Collective:
    """Take part in the group's next collective, with these tensors.

    `op` is the name of the reduction (`SUM`, `MAX`, ...) or empty, `root` a rank within the group or -1.
    """

    group: str
    name: str
    tensors: list[Tensor]
    op: str
    root: int
    line: str

    def __str__(self) -> str:
        parts = [shown(t.dtype, t.numel()) for t in self.tensors[:2]] + ["..."] * (len(self.tensors) > 2)
        if self.op:
            parts.append(self.op)
        if self.root >= 0:
            parts.append(f"root {self.root}")
        return f"{self.name}({', '.join(parts)})"


Request = Send | Receive | Collective


def shown(dtype: torch.dtype, numel: int) -> str:
    """`float32[12]`."""
    return f"{str(dtype).removeprefix('torch.')}[{numel}]"


def nbytes(tensors: list[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
