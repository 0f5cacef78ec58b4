"""What collectives compute: from every member's tensors to every member's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.virtual.requests import Collective

_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def signature(call: Collective) -> Any:
    """What must be equal on all members of one collective."""
    sizes: Any = [(t.dtype, t.numel()) for t in call.tensors]
    if call.name in ("scatter", "all_to_all"):  # only the root's count, or sizes differ by rank
        sizes = None
    return call.name, call.op, call.root, sizes


def complete(calls: list[Collective]) -> list[list[Tensor]]:
    """Each member's results, in the order of its outputs. `calls` are the members' requests, by rank in the group.

    all_reduce, broadcast: as many tensors as went in. reduce: those, on the root; none elsewhere. all_gather and
    gather: for each tensor that went in, one from every member (gather: on the root). scatter: one tensor, from the
    root's N. reduce_scatter: of each member's N k tensors, k; all_to_all: N tensors, one from every member.
    """
    first, n = calls[0], len(calls)
    name = first.name
    with torch.no_grad():
        if name == "barrier":
            return [[] for _ in calls]
        if name in ("all_reduce", "reduce"):
            total = [_reduce(first.op, [call.tensors[i] for call in calls]) for i in range(len(first.tensors))]
            return [total if name == "all_reduce" or rank == first.root else [] for rank in range(n)]
        if name == "broadcast":
            data = [t.detach().clone() for t in calls[first.root].tensors]
            return [data for _ in calls]
        if name in ("all_gather", "gather"):
            gathered = [call.tensors[i].detach().clone() for i in range(len(first.tensors)) for call in calls]
            return [gathered if name == "all_gather" or rank == first.root else [] for rank in range(n)]
        if name == "scatter":
            return [[calls[first.root].tensors[rank].detach().clone()] for rank in range(n)]
        if name == "all_to_all":
            return [[call.tensors[rank].detach().clone() for call in calls] for rank in range(n)]
        if name == "reduce_scatter":
            outputs = len(first.tensors) // n
            return [
                [_reduce(first.op, [call.tensors[i * n + rank] for call in calls]) for i in range(outputs)]
                for rank in range(n)
            ]
    raise KeyError(name)


def _reduce(op: str, tensors: list[Tensor]) -> Tensor:
    """The reduction over members, in the order of their ranks."""
    combine = _PAIRWISE[op]
    total = tensors[0].detach().clone()
    for tensor in tensors[1:]:
        total = combine(total, tensor.detach())
    if op == "AVG":
        total = total / len(tensors) if total.is_floating_point() else total // len(tensors)
    return total
