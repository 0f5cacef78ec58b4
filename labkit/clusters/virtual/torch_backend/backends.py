"""Operations that gloo and NCCL accept or reject: reductions by dtype, shapes, layouts. Error types are theirs.

Virtual ranks compute the same for both; but a program that real ranks reject is rejected here too, by the backend that
it requested. From torch 2.13's ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64)
_COMPLEX = (torch.complex64, torch.complex128)
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_BITWISE = ("BAND", "BOR", "BXOR")


class Backend(Protocol):
    """Input checks of a backend. `call` is the collective's name, for messages; `n` the size of the group."""

    name: str

    def data(self, call: str, tensors: Iterable[Tensor]) -> None:
        """Raise unless tensors of this dtype and layout can be sent."""

    def reduction(self, call: str, op: str, dtype: torch.dtype) -> None:
        """Raise unless this reduction exists for this dtype."""

    def gathered(self, call: str, outputs: Sequence[Tensor], given: Tensor, n: int) -> None:
        """Check a list of outputs, one from each member."""

    def gathered_whole(self, output: Tensor, given: Tensor, n: int) -> None:
        """Check one output for the inputs of all members."""

    def scattered(self, call: str, output: Tensor, given: Sequence[Tensor], n: int, rank: int) -> None:
        """Check a list of inputs, one for each member; `rank` is the rank within the group."""

    def scattered_whole(self, output: Tensor, given: Tensor, n: int) -> None:
        """Check one input for all members."""

    def exchanged(self, outputs: Sequence[Tensor], given: Sequence[Tensor], n: int) -> None:
        """Check all_to_all with lists."""


def backend(asked: str) -> Backend:
    """The backend of a group's tensors: `gloo`, `nccl`, or the CPU's part of `cpu:gloo,cuda:nccl`.

    Raises NotImplementedError for any other.
    """
    by_device = dict(part.split(":", 1) for part in asked.split(",") if ":" in part)
    for name in by_device.values() or (asked,):
        if name not in _BACKENDS:
            raise NotImplementedError(f"virtual ranks have the backends gloo and nccl, not {name!r}")
    return _BACKENDS[by_device.get("cpu") or next(iter(by_device.values()), asked)]


class _Gloo:
    name = "gloo"
    _moved = frozenset((*_FLOATS, *_INTEGERS, *_COMPLEX))
    _reduced = frozenset(
        [(op, dtype) for op in ("SUM", "PRODUCT", "MIN", "MAX") for dtype in (*_FLOATS, *_INTEGERS)]
        + [("AVG", dtype) for dtype in (*_FLOATS, *_COMPLEX)]
        + [("SUM", dtype) for dtype in _COMPLEX]
        + [(op, dtype) for op in _BITWISE for dtype in _INTEGERS]
    )

    def data(self, call: str, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.dtype not in self._moved or (call == "gather" and tensor.dtype.is_complex):
                raise RuntimeError(f"Invalid scalar type: gloo has no {call} for {_name(tensor.dtype)}")

    def reduction(self, call: str, op: str, dtype: torch.dtype) -> None:
        if (op, dtype) in self._reduced:
            return
        if op == "PREMUL_SUM":
            raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
        if dtype not in self._moved:
            raise RuntimeError(f"Invalid scalar type: gloo has no {call} for {_name(dtype)}")
        if op in _BITWISE and not dtype.is_complex:
            raise RuntimeError(f"Cannot use ReduceOp.{op} with non-integral dtype: {call} got {_name(dtype)}")
        if op == "AVG":
            raise RuntimeError(f"{call} with AVG gives fractions, which {_name(dtype)} cannot hold: use SUM and divide")
        raise RuntimeError(f"{call} does not support {op} on complex tensors")

    def gathered(self, call: str, outputs: Sequence[Tensor], given: Tensor, n: int) -> None:
        if len(outputs) != n:
            raise RuntimeError(f"{call}: invalid output tensor list (expected length {n}, got {len(outputs)})")
        for index, output in enumerate(outputs):
            _same(call, index, output, given)

    def gathered_whole(self, output: Tensor, given: Tensor, n: int) -> None:
        wanted = (given.shape[0] * n, *given.shape[1:]) if given.dim() else (n,)
        if tuple(output.shape) != wanted or (given.dim() == 0 and n > 1):
            raise RuntimeError(
                f"all_gather_single: invalid output size: gloo wants {list(wanted)} for inputs of {list(given.shape)} "
                f"from {n} ranks (no 0-dimensional inputs), got {list(output.shape)}"
            )
        if output.dtype != given.dtype:
            raise RuntimeError(_dtypes("all_gather_single", output, given))

    def scattered(self, call: str, output: Tensor, given: Sequence[Tensor], n: int, rank: int) -> None:
        if len(given) != n:
            raise RuntimeError(f"{call}: invalid input tensor list size, must be world size ({n}), got {len(given)}")
        _same(call, rank, given[rank], output)

    def scattered_whole(self, output: Tensor, given: Tensor, n: int) -> None:
        if output.dtype != given.dtype:
            raise RuntimeError(_dtypes("reduce_scatter_single", output, given))
        wanted = (output.shape[0] * n, *output.shape[1:]) if output.dim() else None
        if tuple(given.shape) != wanted:
            raise RuntimeError(
                f"reduce_scatter_single: gloo wants an input of {n} x {list(output.shape)} along its first dimension, "
                f"got {list(given.shape)}"
            )

    def exchanged(self, outputs: Sequence[Tensor], given: Sequence[Tensor], n: int) -> None:
        for side, tensors in (("input", given), ("output", outputs)):
            if len(tensors) != n:
                raise RuntimeError(f"all_to_all: {side} tensor list size {len(tensors)} does not match world size {n}")
            for index, tensor in enumerate(tensors):
                _same("all_to_all", index, tensor, given[0])


class _Nccl:
    name = "nccl"
    _moved = frozenset((*_FLOATS, *_INTEGERS, *_COMPLEX, *_FLOAT8))
    _reduced = frozenset(
        [(op, dtype) for op in ("SUM", "PRODUCT", "MIN", "MAX") for dtype in (*_FLOATS, *_INTEGERS)]
        + [("AVG", dtype) for dtype in (*_FLOATS, *_INTEGERS, *_COMPLEX) if dtype is not torch.bool]
        + [("SUM", dtype) for dtype in _COMPLEX]
        + [("PREMUL_SUM", dtype) for dtype in _FLOATS]
    )

    def data(self, call: str, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise ValueError("Tensors must be contiguous")
            if tensor.dtype not in self._moved:
                raise TypeError(
                    f"Input tensor data type is not supported for NCCL process group: {_name(tensor.dtype)}"
                )

    def reduction(self, call: str, op: str, dtype: torch.dtype) -> None:
        if (op, dtype) in self._reduced:
            return
        if dtype not in self._moved:
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {_name(dtype)}")
        if op in _BITWISE:
            raise ValueError(f"Cannot use ReduceOp.{op} with NCCL")
        if op == "PREMUL_SUM":
            raise TypeError(f"PreMulSum Data type must be half, float, bfloat16 or double, got {_name(dtype)}")
        if op == "AVG" and dtype is torch.bool:
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
        if dtype in _FLOAT8:
            raise NotImplementedError(f"{call} of {_name(dtype)} on virtual ranks: only data movement is done")
        raise ValueError(f"{call} does not support {op} on complex tensors")

    def gathered(self, call: str, outputs: Sequence[Tensor], given: Tensor, n: int) -> None:
        if len(outputs) != n:
            raise ValueError(
                f"Tensor list input to {call} must match number of collective participants ({n}), got {len(outputs)}"
            )
        if any(output.dtype != given.dtype for output in outputs):
            raise TypeError("Tensors must have identical type")

    def gathered_whole(self, output: Tensor, given: Tensor, n: int) -> None:
        if output.dtype != given.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if output.numel() != given.numel() * n:
            raise ValueError("output tensor size must be equal to world_size times input tensor size")

    def scattered(self, call: str, output: Tensor, given: Sequence[Tensor], n: int, rank: int) -> None:
        if len(given) != n:
            raise ValueError(
                f"Tensor list input to {call} must match number of collective participants ({n}), got {len(given)}"
            )
        if any(tensor.dtype != output.dtype for tensor in given):
            raise TypeError("Tensors must have identical type")
        if given[rank].numel() != output.numel():
            raise ValueError(f"{call}: output has {output.numel()} elements, this rank's input {given[rank].numel()}")

    def scattered_whole(self, output: Tensor, given: Tensor, n: int) -> None:
        if output.dtype != given.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if given.numel() != output.numel() * n:
            raise ValueError("input tensor must be the same size as output size times world size")

    def exchanged(self, outputs: Sequence[Tensor], given: Sequence[Tensor], n: int) -> None:
        if len(outputs) != n or len(given) != n:
            raise ValueError(
                f"all_to_all: {len(given)} input and {len(outputs)} output tensors, the group has {n} ranks"
            )


_BACKENDS: dict[str, Backend] = {"gloo": _Gloo(), "nccl": _Nccl()}


def check_splits(
    output: Tensor, given: Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], n: int
) -> None:
    """Check the tensors and splits of all_to_all_single, the same on every backend."""
    if not (output.is_contiguous() and given.is_contiguous()):
        raise ValueError("Tensors must be contiguous")
    for tensor, sizes in ((output, output_sizes), (given, input_sizes)):
        length = tensor.shape[0] if tensor.dim() else 1
        if sizes and len(sizes) != n:
            raise RuntimeError(f"Number of tensor splits not equal to group size: {len(sizes)} splits for {n} ranks")
        if sizes and sum(sizes) != length:
            raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {list(sizes)} for {length} rows")
        if not sizes and (length % n or not tensor.dim()):
            raise RuntimeError(
                f"Tensor's dim 0 does not divide equally across group size: {list(tensor.shape)} for {n} ranks"
            )
    if not output_sizes and not input_sizes and output.numel() != given.numel():
        raise RuntimeError(
            f"all_to_all_single: without splits output and input are of one size, got {list(output.shape)} and "
            f"{list(given.shape)}"
        )


def _same(call: str, index: int, tensor: Tensor, wanted: Tensor) -> None:
    if tensor.shape != wanted.shape:
        raise RuntimeError(
            f"{call}: invalid tensor size at index {index} (expected {list(wanted.shape)}, got {list(tensor.shape)})"
        )
    if tensor.dtype != wanted.dtype:
        raise RuntimeError(f"{call}: invalid tensor type at index {index}: {_dtypes(call, tensor, wanted)}")


def _dtypes(call: str, output: Tensor, given: Tensor) -> str:
    return f"{call}: output and input are of one dtype, got {_name(output.dtype)} and {_name(given.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
