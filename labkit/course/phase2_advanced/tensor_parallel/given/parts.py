"""Parts of a tensor's dimension, one for each rank of a group: which indices each covers, gathering and checking them.

The plumbing of the exercise `tensor_parallel`. All checks raise `ValueError` before anything is sent.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from labkit.course.arguments import require, shown, tensor
from labkit.course.collective_arguments import require_this_rank


def part_of(size: int, group: ProcessGroup | None = None, rank: int | None = None, *, name: str = "size") -> slice:
    """Return which of `size` rows or columns a rank of the group holds: this rank if `rank` is None.

    Parts are in the order of the ranks and differ by one at most: 10 on 4 ranks are 2, 3, 2 and 3. Raises `ValueError`
    if a rank would hold none, with `name` as the name of the size, and if this rank is not in the group.
    """
    require_this_rank(group)
    ranks = dist.get_world_size(group)
    if size < ranks:
        raise ValueError(f"{name} must be at least {ranks}, one for each rank, got {size}")
    rank = dist.get_rank(group) if rank is None else rank
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def all_gather_parts(own: Tensor, size: int, group: ProcessGroup | None = None) -> Tensor:
    """Concatenate the parts (..., part) of all ranks along the last dimension: (..., size), on every rank.

    One all-gather, in which all parts have the length of the longest.
    """
    ranks = dist.get_world_size(group)
    sent = F.pad(own, (0, -(-size // ranks) - own.shape[-1])).contiguous()
    parts = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(parts, sent, group)
    return torch.cat([part[..., : _length(part_of(size, group, rank))] for rank, part in enumerate(parts)], dim=-1)


def apply_in_group(function: type[Function], x: Tensor, *arguments: Any) -> Tensor:
    """Return `function.apply(x, *arguments)`. The last argument is a group, which must contain this rank."""
    require_this_rank(arguments[-1])
    out: Tensor = function.apply(x, *arguments)
    return out


def check_last_dimension(x: Tensor, size: int) -> None:
    """Raise `ValueError` unless x is (..., size)."""
    require("x", x, tensor((..., size)))


def check_own_part(x: Tensor, size: int, group: ProcessGroup | None) -> None:
    """Raise `ValueError` unless x is (..., part), where part is the length of this rank's part of `size`."""
    check_last_dimension(x, _length(part_of(size, group)))


def check_below(name: str, numbers: Tensor, limit: int) -> None:
    """Raise `ValueError` unless all numbers are in [0, limit).

    Checks CPU tensors only, and no fake ones: reading from a GPU would make the host wait.
    """
    if type(numbers) is Tensor and numbers.device.type == "cpu" and numbers.numel():
        wrong = numbers[(numbers < 0) | (numbers >= limit)]
        if wrong.numel():
            raise ValueError(f"{name} must be integers from 0 to {limit - 1}, got {wrong[0].item()}")


def check_targets(
    targets: Tensor, logits: Tensor, vocab_size: int, group: ProcessGroup | None, ignore_index: int
) -> None:
    """Raise `ValueError` unless targets (...) fit the logits (..., part) of this rank's part of the vocabulary.

    Targets other than `ignore_index` must be in [0, vocab_size); on a GPU they are not checked.
    """
    part = part_of(vocab_size, group, name="vocab_size")
    if logits.shape != (*targets.shape, _length(part)):
        raise ValueError(
            f"logits must have shape {(*targets.shape, _length(part))}, as targets and this rank's part of "
            f"{vocab_size} have it, got {shown(logits)}"
        )
    check_below("targets", torch.where(targets != ignore_index, targets, 0), vocab_size)


def _length(part: slice) -> int:
    return int(part.stop - part.start)
