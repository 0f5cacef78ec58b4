"""Tensors packed into one message, equal weights at the start, and the speeds of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.phase3_multi_node.ddp.given.agreement import broadcast_together
from labkit.course.phase3_multi_node.local_sgd.given.arguments import check_tensors


class Message:
    """Tensors of any shapes and dtypes packed into one, `flat`, which ends with one more element, initially 1.

    flat: 1-D, float32 or wider: a sum over many ranks needs more digits than bfloat16 has. tensors: a list of them.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = [tensor.detach() for tensor in check_tensors(tensors)]
        wide = reduce(torch.promote_types, (tensor.dtype for tensor in self.tensors), torch.float32)
        parts = [tensor.reshape(-1).to(wide) for tensor in self.tensors]
        self.flat = torch.cat([*parts, parts[0].new_ones(1)])

    def views(self) -> list[Tensor]:
        """Return the part of `flat` that belongs to each tensor, in its shape; views of `flat`."""
        parts = self.flat[:-1].split([tensor.numel() for tensor in self.tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]


def start_equal(parameters: Sequence[nn.Parameter], group: ProcessGroup | None) -> None:
    """Give every rank the values of the group's first rank: one broadcast."""
    broadcast_together(parameters, group)


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the `grad` of each parameter; None is replaced by zeros."""
    grads = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        grads.append(parameter.grad)
    return grads


def widened(parameter: Tensor) -> Tensor:
    """Return a copy of the parameter in float32, or in its own dtype if that is wider."""
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)


def exchange_speeds(speed: float, group: ProcessGroup | None) -> list[float]:
    """Return the speeds of all ranks of the group, in their order: one all-gather of 8 bytes."""
    nccl = dist.get_backend(group) == dist.Backend.NCCL and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    own = torch.tensor([speed], dtype=torch.float64, device=device)
    speeds = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(speeds, own, group=group)
    return [value.item() for value in speeds]
