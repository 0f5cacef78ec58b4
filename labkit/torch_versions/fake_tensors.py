"""Fake tensors: their classes and errors, and how they are made and swapped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode", "fake_tensor",
    "swap_fake_tensors",
]  # fmt: skip


def fake_tensor(meta: torch.Tensor, device: torch.device, attributes: dict[str, Any]) -> torch.Tensor:
    """A fake tensor of `device` from one on `meta`, with another's attributes: its constructor, but shorter."""
    fake = torch.Tensor._make_subclass(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
    torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(attributes)
    return fake


def swap_fake_tensors(mode: FakeTensorMode) -> None:
    """Let `module.to(torch.bfloat16)` swap fake parameters with new ones, which torch refuses while weak references to
    them exist. The mode has some since their creation: it drops them first.
    """
    original: Callable[..., None] = torch.utils.swap_tensors
    known: Any = mode.fake_tensor_converter.meta_converter.tensor_memo

    @functools.wraps(original)
    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        for key in [key for key, tensor in known.items() if tensor is first or tensor is second]:
            del known[key]
        original(first, second)

    torch.utils.swap_tensors = swap
