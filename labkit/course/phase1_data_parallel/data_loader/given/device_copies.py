"""Copies of batches on a device, made beside the computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Batch = TypeVar("Batch")


class DeviceCopies:
    """Copies batches to `device`: tensors within tuples, lists and dicts; the rest stays as it is.

    On a GPU the copies are made in a stream of their own, while kernels run in others.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make(self, batch: Batch) -> Batch:
        """Return a copy of `batch`, once it is complete; call this in the thread that reads ahead."""
        with torch.cuda.stream(self.stream):
            copy = _mapped(lambda tensor: tensor.to(self.device, non_blocking=True), batch)
        if self.stream is not None:
            self.stream.synchronize()
        return cast(Batch, copy)

    def hand_over(self, copy: Batch) -> Batch:
        """Return `copy` to the thread that uses it: its memory is reused only after that thread's kernels."""
        if self.stream is not None:
            _mapped(lambda tensor: tensor.record_stream(torch.cuda.current_stream(self.device)), copy)
        return copy


def _mapped(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """Return `batch` with each tensor in it replaced by the result of `function`."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: _mapped(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(function, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_mapped(function, value) for value in batch)
    return batch
