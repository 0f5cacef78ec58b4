"""A bucket: some parameters, and one flat buffer in which their gradients travel together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Bucket:
    """Parameters of one dtype on one device, and a buffer for their gradients, allocated when it is first used.

    A communication hook gets it in the place of `torch.distributed.GradBucket` and finds the same methods: `index`,
    `buffer`, `gradients`, `parameters`, `is_last`.
    """

    def __init__(self, index: int, parameters: Iterable[nn.Parameter], is_last: bool = False) -> None:
        self._index, self._parameters, self._is_last = index, list(parameters), is_last
        self._buffer: Tensor | None = None
        self._views: dict[nn.Parameter, Tensor] = {}
        self.missing: set[nn.Parameter] = set(self._parameters)
        """Parameters whose gradients have not arrived yet in this backward pass."""
        self.pending: Any = None
        """The all-reduce under way: a `Work`, or the `Future` of a communication hook. None if it is not launched."""

    def index(self) -> int:
        """Return the place of this bucket in the order in which buckets are launched, from 0."""
        return self._index

    def is_last(self) -> bool:
        """Return whether this is the last bucket to be launched."""
        return self._is_last

    def parameters(self) -> list[nn.Parameter]:
        """Return the bucket's parameters, in the order of their gradients in the buffer."""
        return self._parameters

    def buffer(self) -> Tensor:
        """Return the gradients of all parameters as one 1-D tensor, (sum of numels,)."""
        if self._buffer is None:
            sizes = [parameter.numel() for parameter in self._parameters]
            first = self._parameters[0]
            self._buffer = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
            parts = self._buffer.split(sizes)
            self._views = {p: part.view(p.shape) for p, part in zip(self._parameters, parts, strict=True)}
        return self._buffer

    def view(self, parameter: nn.Parameter) -> Tensor:
        """Return the part of the buffer for this parameter's gradient, in its shape: the same tensor at each call."""
        self.buffer()
        return self._views[parameter]

    def gradients(self) -> list[Tensor]:
        """Return the buffer's parts, one for each of `parameters()`, in their shapes."""
        return [self.view(parameter) for parameter in self._parameters]

    def wait(self) -> None:
        """Wait until the gradients of all ranks are in the buffer: the result of a hook's future is copied there.

        Raises RuntimeError if `pending` is None.
        """
        if self.pending is None:
            why = "either it was not launched, or what launched it returned None, as without async_op=True"
            if self.missing:
                count = f"{len(self.missing)} of its {len(self._parameters)} parameters"
                why = f"it was not launched, and {count} are in `missing`"
            raise RuntimeError(f"bucket {self._index} has nothing to wait for, `pending` is None: {why}")
        result = self.pending.wait()
        if isinstance(result, Sequence):  # the value of a Work's future is a list
            result = result[0]
        if isinstance(result, Tensor) and result is not self.buffer():
            self.buffer().copy_(result.view(-1))

    def start_over(self) -> None:
        """Expect all gradients again: the next backward pass begins."""
        self.missing, self.pending = set(self._parameters), None

    def __repr__(self) -> str:
        return f"Bucket({self._index}, {len(self._parameters)} parameters)"
