"""Fake tensors on virtual ranks: the same program with shapes only, so that a model of any size runs on a laptop.

All ranks share one `FakeTensorMode`, since one operator cannot mix tensors of two modes. The process group passes on
shapes; times, traffic and memory are those of the real program, as none of them depends on values.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, get_default_dtype, get_float32_matmul_precision
from torch.distributed import ProcessGroup

from labkit.clusters.virtual.device.memory import in_blocks, is_meta
from labkit.clusters.virtual.device.operators import Operator
from labkit.clusters.virtual.device.supposed import advice, supposed
from labkit.hardware import GPU
from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.torch_versions.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    constant_tensor,
    copy_fake_tensors,
    device_of,
    fake_by_default,
    fake_tensor,
    fake_view,
    keep_values_up_to,
    swap_fake_tensors,
)
from labkit.torch_versions.tensors import ddp_of_shapes, storage_key

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_SMALL = 4096
"""Maximum elements of a tensor whose value is known if computed from Python's numbers: an announced shape, counts."""
_SAID = {"_local_scalar_dense": "`.item()` (or `float()`, `int()`, `if` on a tensor)", "equal": "`torch.equal`"}


class NewResult(NamedTuple):
    """A result with memory of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    nbytes: int
    """Size of its memory in the account; -1 on `meta`, which is not counted."""


class _AliasResult(NamedTuple):
    """A result that is a view of an argument's memory: argument number, and what it adds to the argument's offset."""

    argument: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int


class _SameResult(NamedTuple):
    """A result that is another tensor of an argument's memory, with its shape and strides: what `detach` returns."""

    argument: int
    device: torch.device


class _ArgumentResult(NamedTuple):
    """An argument itself, by number, or by name: `out`."""

    argument: int | str


_Result = NewResult | _AliasResult | _SameResult | _ArgumentResult | None


class Answer:
    """Results of an operator for arguments of certain shapes, and their cost."""

    __slots__ = ("kind", "marked", "results", "seconds", "view")

    def __init__(self, op: Operator, kind: type, results: list[_Result], marked: tuple[int, ...]) -> None:
        self.kind = kind
        """Type of the return value: `FakeTensor`, a sequence of such, or `NoneType`."""
        self.results = results
        self.marked = marked
        """Numbers of the arguments that the account marks if they are parameters."""
        self.seconds: float | None = None
        """GPU time; None if it takes none."""
        is_view = op.free and not (op.fresh or op.creates or op.seeded or op.communicates or op.grows)
        self.view = results[0] if is_view and kind is FakeTensor else None
        """The only result if it is a view, which neither takes time nor has memory of its own."""


class Shapes:
    """Output shapes of operators. Created once per process; all its ranks enter `mode`.

    The mode takes 200 microseconds per operator. A known answer takes a twentieth of that.
    """

    def __init__(self) -> None:
        ddp_of_shapes()
        self.mode = FakeTensorMode()
        swap_fake_tensors(self.mode)
        copy_fake_tensors()
        fake_by_default(self.mode)
        keep_values_up_to(_SMALL, otherwise=lambda tensor: supposed(tensor.shape, tensor.dtype))
        self.answers: defaultdict[GPU, dict[Any, Answer]] = defaultdict(dict)
        """Known answers by `key`, for all ranks with the same kind of GPU."""
        self.updates: defaultdict[GPU, dict[Any, Any]] = defaultdict(dict)
        """Charges of optimizers' updates (adam_updates.py), likewise."""

    def run(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """The operator's result, computed by the mode. Raises RuntimeError if it depends on values."""
        if op.name in _OF_CONSTANTS:
            if _is_of_constant(op, args):
                return _of_constant(op, args, kwargs)
            if op.name == "lift_fresh" and args[0].__class__ is Tensor and args[0].numel() == 1 and args[0].is_cpu:
                with DisableTorchDispatch():
                    return constant_tensor(self.mode, args[0].clone())
        try:
            output = op.call(*args, **kwargs)
            return self._with_value(output, op, args, kwargs) if op.name in _OF_NUMBERS else output
        except _NEEDS_VALUES:
            declare = ""
            if op.name == "_local_scalar_dense":
                number = supposed((), args[0].dtype)
                if number is not None:
                    with DisableTorchDispatch():
                        return number.item()
                declare = f", say what it would be ({advice()})"
            name = _SAID.get(op.name, f"`{op.name}`")
            raise RuntimeError(
                f"{name} needs values, but with fake=True tensors have shapes only. Leave it out{declare}, or run a "
                "smaller model with real tensors"
            ) from None

    def _with_value(self, output: Any, op: Operator, args: Any, kwargs: Any) -> Any:
        """The output of an operator on numbers, with its value if it is small and of integers."""
        if output.numel() > _SMALL or output.is_floating_point() or output.is_complex() or is_meta(output):
            return output
        with DisableTorchDispatch():
            return constant_tensor(self.mode, op.call(*args, **kwargs))


def made(result: _Result, args: Any, kwargs: Any) -> Any:
    """One result of an operator with a known answer. Call it without dispatch modes."""
    kind = result.__class__
    if kind is NewResult:
        size, stride, dtype, device, _ = result  # type: ignore[misc]  # it is a NewResult
        return fake_tensor(_empty_strided(size, stride, dtype=dtype, device=_META), device)
    if kind is _AliasResult:
        number, size, stride, dtype, device, offset = result  # type: ignore[misc]  # as above
        base = args[number]
        return fake_view(base, size, stride, base.storage_offset() + offset, dtype, device)
    if kind is _SameResult:
        return fake_tensor(args[result.argument], result.device)  # type: ignore[union-attr]  # it is a _SameResult
    if result is None:
        return None
    argument = result.argument  # type: ignore[union-attr]  # it is an _ArgumentResult
    return kwargs[argument] if argument.__class__ is str else args[argument]


_empty_strided = torch.empty_strided
_META = torch.device("meta")
_OF_CONSTANTS = ("add_", "_local_scalar_dense", "lift_fresh")
_OF_NUMBERS = ("arange", "full", "ones", "zeros")


def _is_of_constant(op: Operator, args: Any) -> bool:
    return getattr(args[0], "constant", None) is not None and not any(isinstance(a, Tensor) for a in args[1:])


def _of_constant(op: Operator, args: Any, kwargs: Any) -> Any:
    """The result for a small tensor whose value is known nevertheless: an optimizer's step count."""
    with DisableTorchDispatch():
        result = op.call(args[0].constant, *args[1:], **kwargs)
    return args[0] if isinstance(result, Tensor) else result


# Keys of answers --------------------------------------------------------------------------------------------------

_PLAIN = frozenset(
    (int, bool, str, complex, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format)
)  # fmt: skip
_WITHOUT_SHAPE = (torch.Generator, ProcessGroup)


def key(op: Operator, args: Any, kwargs: Any) -> Any:
    """Everything that the results' shapes and the costs depend on; None if that is unknown."""
    if op.composite or op.reshapes:
        return None
    parts: list[Any] = [op, get_default_dtype()]
    if op.flops is not None:
        parts.append(get_float32_matmul_precision())
    # of operators on tensors, fractions are factors and tolerances, and new ones come with each step
    fractions = not args or args[0].__class__ not in (FakeTensor, list)
    if not _add_to_key(parts, args, fractions):
        return None
    if op.by_offset and _offset_counts(op, args):
        parts.append(args[0].storage_offset())
    if kwargs:
        parts += kwargs
        if not _add_to_key(parts, kwargs.values(), fractions):
            return None
    return tuple(parts)


def _offset_counts(op: Operator, args: Any) -> bool:
    """Whether the result may begin at a varying distance, in elements, from the argument."""
    return op.name.startswith("as_strided") or (op.name == "view" and args[-1].__class__ is torch.dtype)


def _add_to_key(parts: list[Any], arguments: Any, fractions: bool) -> bool:
    """Append what a result's shape depends on; False if that is unknown."""
    for argument in arguments:
        kind = argument.__class__
        if kind is FakeTensor:
            if argument.constant is not None:
                return False
            parts += argument.shape, argument.stride(), argument.dtype, device_of(argument)
        elif kind in _PLAIN:
            parts += kind, argument
        elif kind is list:
            inner: list[Any] = []
            if not _add_to_key(inner, argument, True):
                return False
            parts.append(tuple(inner))
        elif kind is float:
            parts += (kind, argument) if fractions else (kind,)
        elif issubclass(kind, _WITHOUT_SHAPE):
            parts.append(kind)
        else:
            return False
    return True


# Making answers ---------------------------------------------------------------------------------------------------


def answer(op: Operator, output: Any, args: Any, kwargs: Any) -> Answer | None:
    """A recipe for making this output again from such arguments; None if it cannot be made from their shapes."""
    tensors = [*output] if isinstance(output, (list, tuple)) else [] if output is None else [output]
    storages = [_storage_of(argument) for argument in args]
    others = {_storage_of(item) for a in (*args, *kwargs.values()) if isinstance(a, list) for item in a}
    others |= {_storage_of(argument) for argument in kwargs.values()}
    results: list[_Result] = []
    fresh: set[int | None] = set()
    for tensor in tensors:
        if tensor is None:
            results.append(None)
            continue
        storage = _storage_of(tensor)
        same = next((i for i, argument in (*enumerate(args), *kwargs.items()) if argument is tensor), None)
        if storage is None or tensor.constant is not None or storage in fresh or (storage in others and same is None):
            return None  # two results share new memory, or one is a view of a list's tensor
        form = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device
        if same is not None:
            results.append(_ArgumentResult(same))
        elif storage in storages:
            base = args[storages.index(storage)]
            if tensor.dtype is not base.dtype and not _offset_counts(op, args):
                return None
            offset = tensor.storage_offset() - base.storage_offset()
            number = storages.index(storage)
            same_form = (base.shape, base.stride(), base.dtype) == form[:3] and not offset
            results.append(_SameResult(number, form[3]) if same_form else _AliasResult(number, *form, offset))
        else:
            with DisableTorchDispatch():
                alone = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            if tensor.storage_offset() or alone.untyped_storage().nbytes() != tensor.untyped_storage().nbytes():
                return None
            fresh.add(storage)
            results.append(NewResult(*form, -1 if is_meta(tensor) else in_blocks(tensor.untyped_storage().nbytes())))
    if not results and output is not None:
        return None
    # a layer's weight may be used through a view of it
    arguments = enumerate((() if op.fresh else args[:1]) if op.free else args)
    return Answer(op, type(output), results, tuple(i for i, a in arguments if a.__class__ is FakeTensor))


def _storage_of(argument: Any) -> int | None:
    """The address of a fake tensor's memory; None for anything else."""
    return storage_key(argument.untyped_storage()) if argument.__class__ is FakeTensor else None
