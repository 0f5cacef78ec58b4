"""A rank's requests to the scheduler: send, receive, take part in a collective, use the key-value store.

A request is one object from its posting to its end: the rank sets its parameters, the scheduler the times when it was
posted and done, and its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Request:
    """Base of all requests. The scheduler sets the fields that are not arguments."""

    group: str
    """Name of the process group."""
    name: str
    """Name of the operation in the trace."""
    line: str
    """Call site: `Cell In[3], line 5`."""
    rank: int = field(default=-1, init=False)
    posted: float = field(default=0.0, init=False)
    """The rank's clock at the request, in seconds."""
    order: int = field(default=0, init=False)
    """Number among all requests, in the order in which they reached the scheduler."""
    done_at: float | None = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    result: Any = field(default=None, init=False)
    """Received data: a message's payload, a collective's list of tensors."""
    source: int = field(default=-1, init=False)
    """Sending rank of a receive."""


@dataclass(slots=True, eq=False)
class Send(Request):
    """Send `payload`, the data of `numel` elements, to rank `to` (global rank)."""

    to: int
    tag: int
    dtype: torch.dtype
    numel: int
    nbytes: int
    payload: Any
    """Data from which the receiver can fill its tensor. The scheduler passes it on without reading it."""

    def __str__(self) -> str:
        return f"{self.name}(to rank {self.to}, {shown(self.dtype, self.numel)}{_tagged(self.tag)})"


@dataclass(slots=True, eq=False)
class Receive(Request):
    """Receive the next message from rank `wanted` (global rank; None: any rank) with the same tag."""

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

    `op` is the name of the reduction (`SUM`, `MAX`, ...) or empty, `root` a rank within the group or -1. Of a monitored
    barrier that names all missing ranks, not only the first, `op` is `wait_all_ranks`.
    """

    tensors: list[Tensor]
    op: str
    root: int
    pieces: tuple[int, ...] = ()
    """Number of elements of each tensor for each member, unless the parts are equal."""
    expected: tuple[int, ...] = ()
    """Number of elements that each member should send to this rank, unless all send as many as this rank does."""
    timeout: float = inf
    """Seconds after which it fails unless all have joined."""
    number: int = field(default=-1, init=False)
    """Sequence number within the group on this rank, from 0."""

    def __str__(self) -> str:
        parts = [shown(t.dtype, t.numel()) for t in self.tensors[:2]] + ["..."] * (len(self.tensors) > 2)
        if self.op:
            parts.append(self.op)
        if self.root >= 0:
            parts.append(f"root {self.root}")
        return f"{self.name}({', '.join(parts)})"


@dataclass(slots=True, eq=False)
class StoreCall(Request):
    """The operation `name` on these keys of one key-value store. What it waits for, any rank could do."""

    store: str
    """Name of the store: `tcp://localhost:29500`, for instance."""
    keys: list[str]
    values: list[bytes]
    number: int
    """The summand of `add`; for `queue_pop`, whether to wait."""
    timeout: float
    """Maximum seconds to wait for a key."""

    def __str__(self) -> str:
        shown = ", ".join(repr(key.rpartition("/")[2]) for key in self.keys[:3])
        return f"store.{self.name}({shown})"


@dataclass(slots=True, eq=False)
class Timer(Request):
    """Completes after `seconds`: lets one of a rank's several threads sleep."""

    seconds: float

    def __str__(self) -> str:
        return f"sleep({self.seconds:g})"


@dataclass(slots=True, eq=False)
class Blocked(Request):
    """A thread of the rank waits for another one, in `threading` or `queue`: nothing completes it but that thread.

    `thread` is its name; empty: the rank's own. It is posted so that a deadlock's report names it.
    """

    thread: str

    def __str__(self) -> str:
        return f"{self.name}()" + f" in thread {self.thread}" * bool(self.thread)


def shown(dtype: torch.dtype, numel: int) -> str:
    """`float32[12]`."""
    return f"{str(dtype).removeprefix('torch.')}[{numel}]"


def _tagged(tag: int) -> str:
    return f", tag {tag}" if tag else ""


def nbytes(tensors: list[Tensor]) -> int:
    return tensors[0].nbytes if len(tensors) == 1 else sum(t.nbytes for t in tensors)
