"""Agreement among the ranks of a group: initial values, the order of buckets, which parameters were used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks
from labkit.torch_versions.fake_tensors import FakeTensor
from labkit.torch_versions.tensors import as_bytes


def broadcast_together(tensors: Iterable[Tensor], group: ProcessGroup | None = None) -> None:
    """Give every rank of the group the values that these tensors have on its first rank, in place.

    tensors: of any shapes, dtypes and strides, the same on all ranks. One broadcast for each device: the tensors
    one after the other, as bytes, which every backend sends, unless all are of float32.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            by_device.setdefault(tensor.device, []).append(tensor.data)  # not even autograd's version counter notices
    for alike in by_device.values():
        all_float32 = all(tensor.dtype is torch.float32 for tensor in alike)  # takes half as many operators as bytes
        # the widest elements first: then each tensor's bytes begin at a multiple of its element size
        alike.sort(key=lambda tensor: -tensor.element_size())
        flats = [tensor.reshape(-1) if all_float32 else as_bytes(tensor) for tensor in alike]
        joined = torch.cat(flats)
        dist.broadcast(joined, group_ranks(group)[0], group)
        for tensor, part in zip(alike, joined.split([flat.numel() for flat in flats]), strict=True):
            tensor.copy_((part if all_float32 else part.view(tensor.dtype)).view(tensor.shape))


def as_on_first_rank(
    order: Sequence[nn.Parameter], parameters: Sequence[nn.Parameter], group: ProcessGroup | None = None
) -> list[nn.Parameter]:
    """Return `parameters` in the order of the group's first rank, on every rank: one broadcast of 8 bytes for each.

    order: `parameters` in this rank's order, which other ranks need not share.
    """
    place = {parameter: number for number, parameter in enumerate(parameters)}
    numbers = torch.tensor([place[parameter] for parameter in order], device=parameters[0].device)
    dist.broadcast(numbers, group_ranks(group)[0], group)
    return list(order) if without_values(numbers) else [parameters[number] for number in numbers.tolist()]


def true_on_some_rank(flags: Sequence[bool], device: torch.device, group: ProcessGroup | None = None) -> list[bool]:
    """Return for each flag whether any rank of the group passed True: one all-reduce of 4 bytes for each flag."""
    counts = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(counts, group=group)
    return list(flags) if without_values(counts) else [count > 0 for count in counts.tolist()]


def without_values(tensor: Tensor) -> bool:
    """Return whether this is a fake tensor, which has a shape only (`virtual(fake=True)`)."""
    return isinstance(tensor, FakeTensor)


def done_by_first_rank(function: Callable[[], Any], group: ProcessGroup | None = None) -> Any:
    """Call the function on the group's first rank only, and return its result on every rank.

    If it raises an exception there, every rank raises it, so no rank waits for one that has failed. The result is
    pickled.
    """
    ranks = group_ranks(group)
    outcome: list[Any] = [None, None]
    if dist.get_rank(group) == 0:
        try:
            outcome[0] = function()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, ranks[0], group)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
