"""Parameters laid out one after another in one 1-D tensor, of which every rank keeps a part of the same length."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.clusters.device import node_storage, to_device, to_host
from labkit.torch_versions.collectives import all_gather_single


class FlatParameters:
    """Parameters of one dtype on one device, all trained or all frozen, and this rank's part of them, `shard`.

    The parameters become views of `full`, (padded numel,). A kept one always has its memory, and `shard` is a view of
    it. Otherwise `full` has memory only from `allocate` to `free`, and `shard` is a tensor of its own.
    """

    def __init__(
        self,
        keys: Sequence[Hashable],
        parameters: Sequence[nn.Parameter],
        whole: Tensor,
        group: ProcessGroup | None,
        *,
        keep: bool,
        dtype: torch.dtype | None = None,
        offload: bool = False,
        hybrid: ProcessGroup | None = None,
    ) -> None:
        """whole: the parameters' values, flat and padded. dtype: that of `full`. offload: keep `shard` in host memory.

        hybrid: ranks that have the same part, each in a group of its own; None: there is none other.
        keys: one for each parameter, its key in a state. Raises ValueError if `whole` cannot be cut into equal parts.
        """
        self.keys, self.parameters, self.offload = list(keys), list(parameters), offload
        self.group, self.hybrid = group, hybrid
        self.sizes = [parameter.numel() for parameter in parameters]
        ranks, numel = dist.get_world_size(group), sum(self.sizes)
        if whole.dim() != 1 or len(whole) % ranks or not numel <= len(whole) < numel + ranks:
            raise ValueError(
                f"join must return {numel} elements and as few zeros as make {ranks} equal parts, in one dimension, "
                f"got shape {tuple(whole.shape)}"
            )
        part = self.own_part(whole)
        # a new tensor unless kept: the memory of a tensor that was sent cannot always be resized
        self.full = whole if keep else torch.empty_like(whole, dtype=dtype)
        """All ranks' parts, in the dtype in which the model computes."""
        if not keep:
            part = to_host(part) if offload else part.clone()
        self.shard = nn.Parameter(part, requires_grad=parameters[0].requires_grad)
        self.shard.in_host_memory = offload  # type: ignore[attr-defined]  # read by DiskOptimizer
        """This rank's part, (padded numel / N,): what the optimizer steps."""
        self.missing = set(self.parameters)
        """Parameters whose gradients have not arrived yet."""
        self._views = self.split(self.full)
        self.point_to(None)
        if not keep:
            self.free()

    def point_to(self, whole: Tensor | None) -> None:
        """Make the parameters views of `whole`, or of `full` if it is None."""
        # views of `full` are kept, since no view can be made of freed memory
        for parameter, part in zip(self.parameters, self._views if whole is None else self.split(whole), strict=True):
            parameter.data = part

    def split(self, whole: Tensor) -> list[Tensor]:
        """Return the part of each parameter, in its shape."""
        parts = whole[: sum(self.sizes)].split(self.sizes)
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]

    def own_part(self, whole: Tensor) -> Tensor:
        """Return this rank's part of (padded numel,): a view."""
        size = len(whole) // dist.get_world_size(self.group)
        return whole.detach().narrow(0, dist.get_rank(self.group) * size, size)

    def allocate(self) -> None:
        """Give `full` its memory, with any content."""
        storage = self.full.untyped_storage()
        storage.resize_(self.full.numel() * self.full.element_size())

    def free(self) -> None:
        """Free the memory of `full`; parameters cannot be read until it is filled again."""
        self.full.untyped_storage().resize_(0)

    def has_memory(self) -> bool:
        """Return whether the parameters can be read."""
        return self.full.numel() == 0 or self.full.untyped_storage().nbytes() > 0

    def keep_in_file(self, path: Path) -> None:
        """Move `shard` from host memory to a new file, which is mapped: pages that are not in use need no memory."""
        shard = self.shard.detach()
        self.shard.in_file = True  # type: ignore[attr-defined]  # read by DiskOptimizer
        if node_storage() is not None or not shard.numel():
            return  # a virtual rank's file is modelled by the time that it takes; an empty one cannot be mapped
        mapped = torch.from_file(str(path), shared=True, size=shard.numel(), dtype=shard.dtype)
        self.shard.data = mapped.copy_(shard)

    def own(self) -> Tensor:
        """Return this rank's part as it is sent: on the device, in the dtype of `full`."""
        shard = self.shard.detach()
        if getattr(self.shard, "in_file", False) and (storage := node_storage()) is not None:
            storage.read(shard.nbytes)
        return (to_device(shard, self.full.device) if self.offload else shard).to(self.full.dtype)

    def gather(self, part: Tensor | None = None) -> Tensor:
        """Gather the shards, or a `part` of that length from each rank, into a new tensor, (padded numel,)."""
        part = self.shard.detach() if part is None else part
        part = to_device(part, self.full.device) if self.offload else part
        whole = part.new_empty(len(part) * dist.get_world_size(self.group))
        all_gather_single(whole, part.contiguous(), group=self.group)
        return whole

    def take_gradients(self) -> list[Tensor]:
        """Return the parameters' gradients, each 1-D, and set `grad` to None; return [] if no parameter has one.

        Otherwise zeros replace each gradient that is missing.
        """
        gradients = [parameter.grad for parameter in self.parameters]
        if all(gradient is None for gradient in gradients):
            return []
        for parameter in self.parameters:
            parameter.grad = None
        self.missing = set(self.parameters)
        return [
            self.full.new_zeros(size) if gradient is None else gradient.reshape(-1)
            for size, gradient in zip(self.sizes, gradients, strict=True)
        ]

    def has_gradient(self) -> bool:
        """Return whether a parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def add_gradient(self, part: Tensor) -> None:
        """Add (padded numel / N,) to the gradient of `shard`, in the shard's dtype and memory."""
        part = part.to(self.shard.dtype)
        part = to_host(part) if self.offload else part
        if self.shard.grad is None:
            self.shard.grad = part
        else:
            self.shard.grad.add_(part)


def on_device(number: Tensor, flat: FlatParameters) -> Tensor:
    """Return the tensor where it can be sent: on the device on which the model computes."""
    return to_device(number, flat.full.device) if flat.offload else number.to(flat.full.device)


def alike(parameters: Sequence[nn.Parameter], apart: Collection[nn.Parameter] = ()) -> list[list[nn.Parameter]]:
    """Return the parameters that can share one flat tensor together: by dtype, device, and whether they are trained.

    Parameters in `apart` do not share one with others.
    """
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = parameter.dtype, parameter.device, parameter.requires_grad, parameter in apart
        groups.setdefault(key, []).append(parameter)
    return list(groups.values())
