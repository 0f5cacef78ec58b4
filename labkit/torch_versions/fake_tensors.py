"""Fake tensors: their classes and errors, and how they are made and swapped."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._subclasses import fake_tensor as fake_tensors
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

__all__ = [
    "DEVICE_QUERY", "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode",
    "constant_tensor", "copy_fake_tensors", "device_of", "fake_by_default", "fake_tensor", "fake_view",
    "keep_values_up_to", "set_value", "swap_fake_tensors", "value_of",
]  # fmt: skip

DEVICE_QUERY = torch.ops.prim.device.default
"""The operator by which torch's C++ asks a fake tensor for its device."""

_DEVICE = "_fake_device" if "_fake_device" in FakeTensor.__annotations__ else "fake_device"  # in torch 2.11
device_of: Callable[[torch.Tensor], torch.device] = attrgetter(_DEVICE)
"""The device that a fake tensor represents."""

_empty = torch.empty
_as_strided_ = torch.Tensor.as_strided_
_make_subclass = torch.Tensor._make_subclass
_set_version = torch._C._autograd._unsafe_set_version_counter
_META = torch.device("meta")
_forbid_data_pointer = torch._C._set_throw_on_mutable_data_ptr


def fake_by_default(mode: FakeTensorMode) -> None:
    """Let fake tensors that have no attributes of their own belong to `mode` and represent a CPU's.

    A tensor's own attributes take half of the time of making it, and most of its memory.
    """
    with mode:
        attributes = vars(torch.empty(1))
    for name, value in attributes.items():
        setattr(FakeTensor, name, value)
    FakeTensor._is_param = False  # torch sets it on parameters only


def fake_tensor(meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor of `device` from one on `meta`: its constructor, but shorter. Needs `fake_by_default`."""
    fake = _make_subclass(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
    _forbid_data_pointer(fake)
    if device.type != "cpu":
        setattr(fake, _DEVICE, device)
    return fake


def fake_view(
    base: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """A view of a fake tensor's memory, without an operator that a mode sees. Call it without dispatch modes.

    offset: of its first element in the memory, in elements of `dtype`. dtype and device: by default those of `base`.
    """
    if dtype is None or dtype is base.dtype:
        view = fake_tensor(base, device or device_of(base))
        _as_strided_(view, size, stride, offset)
        _set_version((view,), (0,))  # the line above counts as a write
        return view
    meta = _empty(0, dtype=dtype, device=_META)
    meta.set_(base.untyped_storage(), offset, size, stride)
    return fake_tensor(meta, device or device_of(base))


def constant_tensor(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """A fake tensor with a known value, which writing to it makes unknown, as `torch.tensor(0.0)` returns one."""
    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    fake: Any = fake_tensor(meta, value.device)
    fake.constant = value
    mode.fake_tensor_converter.add_constant_storage_mapping(fake)
    return fake  # type: ignore[no-any-return]  # a FakeTensor


def keep_values_up_to(elements: int, otherwise: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Let modes know the values of such small tensors, if they are computed from Python's numbers alone.

    otherwise: returns what `tolist` takes for an unknown value; None: nothing, so that it raises.
    """
    fake_tensors.CONSTANT_NUMEL_LIMIT = elements
    item_by_item = FakeTensor.tolist

    def tolist(self: FakeTensor) -> Any:  # no operators, as on real tensors
        value = otherwise(self) if self.constant is None else self.constant
        return item_by_item(self) if value is None else value.tolist()

    changed: Any = FakeTensor
    changed.tolist = tolist


def known_values(elements: int) -> bool:
    """Whether a fake tensor with this number of elements may have a known value."""
    return elements <= fake_tensors.CONSTANT_NUMEL_LIMIT


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a fake tensor, not to be written to; None if it is unknown."""
    return tensor.constant if isinstance(tensor, FakeTensor) else None


def set_value(fake: Any, value: torch.Tensor | None) -> None:
    """Give a fake tensor another value, of its shape and dtype; None: an unknown one. Call it without dispatch modes.

    Tensors that share its memory no longer have known values.
    """
    converter = fake.fake_mode.fake_tensor_converter
    if fake.constant is not None:
        converter.invalidate_constant_aliases(fake.constant)
    if value is not None:
        fake.constant = value
        converter.add_constant_storage_mapping(fake)


def swap_fake_tensors(mode: FakeTensorMode) -> None:
    """Let `module.to(torch.bfloat16)` swap fake parameters with new ones, which torch refuses while weak references to
    them exist. The mode has some since their creation: it drops them first.
    """
    original: Callable[..., None] = torch.utils.swap_tensors
    known: Any = mode.fake_tensor_converter.meta_converter.tensor_memo

    @functools.wraps(original)
    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        if weakref.getweakrefcount(first) or weakref.getweakrefcount(second):
            for key in [key for key, tensor in known.items() if tensor is first or tensor is second]:
                del known[key]
        original(first, second)
        for tensor in (first, second):  # torch swaps what calls the hooks, and leaves their list where it was
            tensor._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks

    torch.utils.swap_tensors = swap


def copy_fake_tensors() -> None:
    """Let `copy.deepcopy` copy fake tensors, and modules of them: torch looks for their data, and raises an error.

    A copy has memory of its own, which is counted. As of real tensors, that of a parameter has no gradient.
    """
    original = torch.Tensor.__deepcopy__

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            return original(self, memo)  # type: ignore[no-untyped-call]  # which raises torch's error
        with torch.no_grad():
            copied = self.clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
            copied.grad = None if self.grad is None else deepcopy(self.grad, memo)
        memo[id(self)] = copied
        return copied

    changed: Any = FakeTensor
    changed.__deepcopy__ = deepcopy
