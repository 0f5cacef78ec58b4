"""Fake tensors on virtual ranks: the same program with shapes only, so that a model of any size runs on a laptop.

All ranks share one `FakeTensorMode`, since one operator cannot mix tensors of two modes. The process group passes on
shapes; times, traffic and memory are those of the real program, as none of them depends on values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.clusters.virtual.device.operators import Operator
from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.torch_versions.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    fake_tensor,
    swap_fake_tensors,
)
from labkit.torch_versions.tensors import ddp_of_shapes, shapes_of_dtensors_apart, storage_key

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_SAID = {"_local_scalar_dense": "`.item()` (or `float()`, `int()`, `if` on a tensor)", "equal": "`torch.equal`"}


class _NewResult(NamedTuple):
    """A result with memory of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _AliasResult(NamedTuple):
    """A result that is a view of an argument's memory: argument number and offset in elements."""

    argument: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int


class _ArgumentResult(NamedTuple):
    """An argument itself, by number."""

    argument: int


_Result = _NewResult | _AliasResult | _ArgumentResult


class Shapes:
    """Output shapes of operators. Created once per process; all its ranks enter `mode`.

    The mode takes 70 microseconds per operator. A cached answer takes a quarter of that.
    """

    def __init__(self) -> None:
        ddp_of_shapes()
        shapes_of_dtensors_apart()
        self.mode = FakeTensorMode()
        swap_fake_tensors(self.mode)
        self._answers: dict[Any, tuple[type, list[_Result]] | None] = {}
        """By operator and arguments: type of the return value, and its tensors. None: must be computed each time."""
        with self.mode:
            tensors: list[Any] = [torch.empty(1, device=device) for device in ("cpu", "meta")]
        self._attributes = {torch.device(tensor.fake_device): dict(vars(tensor)) for tensor in tensors}

    def run(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """The operator's result. Raises RuntimeError if it depends on values."""
        key = _key(op, args, kwargs)
        answer = self._answers.get(key) if key is not None else None
        if answer is not None:
            kind, results = answer
            made = [self._make(result, args) for result in results]
            return made[0] if kind is FakeTensor else kind(made)
        if key is None and _is_of_constant(op, args):
            return _of_constant(op, args, kwargs)
        try:
            output = op.call(*args, **kwargs)
        except _NEEDS_VALUES:
            what = _SAID.get(op.name, f"`{op.name}`")
            raise RuntimeError(
                f"{what} needs values, but with fake=True tensors have shapes only. Leave it out, or run a smaller "
                "model with real tensors"
            ) from None
        if key is not None and key not in self._answers:
            self._answers[key] = _answer(output, args)
        return output

    def _make(self, result: _Result, args: Any) -> Tensor:
        if result.__class__ is _ArgumentResult:
            return args[result.argument]  # type: ignore[no-any-return]
        with DisableTorchDispatch():
            if isinstance(result, _NewResult):
                meta = torch.empty_strided(result.size, result.stride, dtype=result.dtype, device="meta")
            else:
                assert isinstance(result, _AliasResult)
                base = args[result.argument]
                offset = base.storage_offset() + result.offset
                meta = torch.empty(0, dtype=result.dtype, device="meta")
                meta.set_(base.untyped_storage(), offset, result.size, result.stride)
            return fake_tensor(meta, result.device, self._attributes[result.device])


def _is_of_constant(op: Operator, args: Any) -> bool:
    return (
        op.name in ("add_", "_local_scalar_dense")
        and getattr(args[0], "constant", None) is not None
        and not any(isinstance(argument, Tensor) for argument in args[1:])
    )


def _of_constant(op: Operator, args: Any, kwargs: Any) -> Any:
    """The result for a small tensor whose value is known nevertheless: an optimizer's step count."""
    with DisableTorchDispatch():
        result = op.call(args[0].constant, *args[1:], **kwargs)
    return args[0] if isinstance(result, Tensor) else result


def _key(op: Operator, args: Any, kwargs: Any) -> Any:
    """Everything that the result's shape depends on; None if that is unknown."""
    if op.grows:
        return None
    key: list[Any] = [op]
    for argument in (*args, *kwargs.items()) if kwargs else args:
        kind = argument.__class__
        if kind is FakeTensor:
            if argument.constant is not None:
                return None
            key.append((argument.shape, argument.stride(), argument.dtype, argument.fake_device))
        elif kind is list:
            if any(isinstance(item, Tensor) for item in argument):
                inner = _key(op, argument, None)
                if inner is None:
                    return None
                key.append(inner)
            else:
                key.append(tuple(argument))
        elif isinstance(argument, Tensor) or (kind is tuple and isinstance(argument[1], (Tensor, list))):
            return None
        else:
            key.append((kind, argument))
    return tuple(key)


def _answer(output: Any, args: Any) -> tuple[type, list[_Result]] | None:
    tensors = output if isinstance(output, (list, tuple)) else [output]
    results: list[_Result] = []
    for tensor in tensors:
        if tensor.__class__ is not FakeTensor or tensor.constant is not None:
            return None
        same = next((i for i, argument in enumerate(args) if argument is tensor), None)
        storage = tensor.untyped_storage()
        addresses = [storage_key(a.untyped_storage()) if isinstance(a, Tensor) else None for a in args]
        base = addresses.index(storage_key(storage)) if storage_key(storage) in addresses else None
        if same is not None:
            results.append(_ArgumentResult(same))
        elif base is not None:
            offset = tensor.storage_offset() - args[base].storage_offset()
            if tensor.dtype is not args[base].dtype:
                return None
            results.append(
                _AliasResult(base, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device, offset)
            )
        elif tensor.storage_offset() == 0:
            results.append(_NewResult(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device))
        else:
            return None
    inside = {storage_key(a.untyped_storage()) for a in args if isinstance(a, list) for a in a if isinstance(a, Tensor)}
    new = (tensor for tensor, result in zip(tensors, results, strict=True) if isinstance(result, _NewResult))
    fresh = [storage_key(tensor.untyped_storage()) for tensor in new]
    if len(set(fresh)) < len(fresh) or inside.intersection(fresh) or not results:
        return None  # two results share new memory, or one is a view of a list's tensor
    return type(output), results
