"""What a rank asks of the scheduler: to send, to receive, to take part in a collective.

A request is one object from its posting to its end: the rank fills in what it wants, the scheduler when it was posted,
when it is done, and what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Request:
    """What all requests have. The scheduler sets the fields that are not given."""

    group: str
    """Name of the process group."""
    name: str
    """The field's name for it, as it stands in the trace."""
    line: str
    """Where it was issued: `Cell In[3], line 5`."""
    rank: int = field(default=-1, init=False)
    posted: float = field(default=0.0, init=False)
    """The rank's clock when it asked, in seconds."""
    order: int = field(default=0, init=False)
    """Number among all requests, as they reached the scheduler."""
    done_at: float | None = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    result: Any = field(default=None, init=False)
    """What arrived: a message's payload, a collective's list of tensors."""
    source: int = field(default=-1, init=False)
    """For a receive: the rank that sent."""


@dataclass(slots=True, eq=False)
class Send(Request):
    """Hand `payload`, the data of `numel` elements, to rank `to` (global rank)."""

    to: int
    tag: int
    dtype: torch.dtype
    numel: int
    nbytes: int
    payload: Any
    """Whatever the receiving rank can fill its tensor from. The scheduler hands it on and does not look at it."""

    def __str__(self) -> str:
        return f"{self.name}(to rank {self.to}, {shown(self.dtype, self.numel)}{_tagged(self.tag)})"


@dataclass(slots=True, eq=False)
class Receive(Request):
    """Take the next message from rank `wanted` (global rank; None: from anybody) with the same tag."""

    wanted: int | None
    tag: int
    dtype: torch.dtype
    numel: int

    def __str__(self) -> str:
        source = "any rank" if self.wanted is None else f"rank {self.wanted}"
        return f"{self.name}(from {source}, {shown(self.dtype, self.numel)}{_tagged(self.tag)})"


@dataclass(slots=True, eq=False)
class Collective(Request):
    """Take part in the group's next collective, with these tensors.

    `op` is the name of the reduction (`SUM`, `MAX`, ...) or empty, `root` a rank within the group or -1.
    """

    tensors: list[Tensor]
    op: str
    root: int
    pieces: tuple[int, ...] = ()
    """How many elements of each tensor go to each member, where they are not equal parts."""
    expected: tuple[int, ...] = ()
    """How many elements each member is to send to this rank, where they are not all as many as it sends itself."""
    timeout: float = inf
    """Seconds after which it fails unless all have joined; only `monitored_barrier` has one."""
    number: int = field(default=-1, init=False)
    """The how-manieth collective of its group it is on this rank, from 0."""

    def __str__(self) -> str:
        parts = [shown(t.dtype, t.numel()) for t in self.tensors[:2]] + ["..."] * (len(self.tensors) > 2)
        if self.op:
            parts.append(self.op)
        if self.root >= 0:
            parts.append(f"root {self.root}")
        return f"{self.name}({', '.join(parts)})"


@dataclass(slots=True, eq=False)
class Timer(Request):
    """Be done after so many seconds: how one of a rank's several threads sleeps."""

    seconds: float

    def __str__(self) -> str:
        return f"sleep({self.seconds:g})"


def shown(dtype: torch.dtype, numel: int) -> str:
    """`float32[12]`."""
    return f"{str(dtype).removeprefix('torch.')}[{numel}]"


def _tagged(tag: int) -> str:
    return f", tag {tag}" if tag else ""


def nbytes(tensors: list[Tensor]) -> int:
    return tensors[0].nbytes if len(tensors) == 1 else sum(t.nbytes for t in tensors)
