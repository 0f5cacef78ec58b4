"""Cost of a virtual rank's operators: each one advances the rank's clock and updates its memory account.

One dispatch mode around the rank's whole program sees every operator, including those of backward passes, optimizers,
DDP and FSDP. An operator takes the time of a roofline (`labkit.hardware.GPU.seconds`) over its FLOPs, which torch's
flop counter knows for matrix products, convolutions and attention, and over the bytes that it reads and writes.
Views are free; an in-place operator reads and writes its tensor; nothing is charged on the `meta` device.

This code runs for hundreds of thousands of operators, so it takes as few steps as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, get_float32_matmul_precision
from torch.nn import Buffer, Parameter

from labkit.clusters.virtual.device.memory import ACTIVATION, COMMUNICATION, HOST, OPTIMIZER, OTHER, MemoryAccount
from labkit.clusters.virtual.device.operators import Operator, known, operator
from labkit.clusters.virtual.device.operators import nbytes as nbytes_of
from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
from labkit.hardware import GPU
from labkit.torch_versions.dispatch import UnguardedDispatchMode
from labkit.torch_versions.fake_tensors import FakeTensor, device_of
from labkit.torch_versions.tensors import IS_PARAMETER

_TENSOR, _PARAMETER, _FAKE, _SEQUENCE = range(1, 5)
COUNTED: dict[Any, int] = {Tensor: _TENSOR, Buffer: _TENSOR, Parameter: _PARAMETER, list: _SEQUENCE, tuple: _SEQUENCE}
"""Classes of arguments that an operator may read or write, and their kinds."""


class Costs:
    """Seconds of operators on one GPU, for all ranks of the process."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.moving: dict[int, float] = {}
        """Seconds of an operator without FLOPs, by bytes."""
        self.working: dict[Any, float] = {}
        """Seconds of an operator with FLOPs, by everything that its FLOPs depend on."""


class Accounting(UnguardedDispatchMode):
    """Charges one rank: `compute(seconds)` for its time, `account` for its memory.

    `claim` is called before an operator draws random numbers.
    """

    def __init__(
        self,
        costs: Costs,
        compute: Callable[[float], None],
        account: MemoryAccount,
        race_detector: RaceDetector,
        claim: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._gpu = costs.gpu
        self._compute = compute
        self._account = account
        self._claim = claim
        self._race_detector = race_detector
        self._moving, self._working = costs.moving, costs.working

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            if kind not in COUNTED:
                if kind is FakeTensor:
                    return function(*args, **(kwargs or {}))  # called by code that only wants shapes
                return NotImplemented  # a DTensor, for example: its operators on local tensors arrive here again
        op = known.get(id(function)) or operator(function)
        if op.without_tensors:
            return op.call(*args, **kwargs) if kwargs else op.call(*args)
        if op.free:
            return self._free(op, args, kwargs or {})
        if op.composite:
            with self:
                parts = function.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        if self._race_detector.pending:
            self._race_detector.check(function, args, kwargs or {})
        account = self._account
        nbytes = 0
        differentiable = False
        for argument in args:
            kind = COUNTED.get(argument.__class__)
            if kind is None:
                continue
            if kind == _TENSOR:
                nbytes += nbytes_of(argument)
                differentiable = differentiable or argument.requires_grad
            elif kind != _SEQUENCE:
                nbytes += nbytes_of(argument)
                differentiable = differentiable or argument.requires_grad
                if kind == _PARAMETER or getattr(argument, IS_PARAMETER, False):
                    account.is_parameter(argument)
            elif argument and argument[0].__class__ is not int:
                for item in argument:
                    if item.__class__ in COUNTED:
                        nbytes += nbytes_of(item)
                        differentiable = differentiable or item.requires_grad
        if kwargs:
            for argument in kwargs.values():
                kind = COUNTED.get(argument.__class__)
                if kind is not None and kind != _SEQUENCE and not op.grows:
                    nbytes += nbytes_of(argument)
        if not op.reads_first:
            nbytes -= nbytes_of(args[0])
        if op.creates:
            account.must_fit(bytes_to_create(args, kwargs or {}))
        if op.seeded and self._claim is not None:
            self._claim()

        output = self._run(op, args, kwargs)

        kind = COUNTED.get(output.__class__)
        if kind is None:
            for number, name in op.rewrites:
                nbytes += nbytes_of(args[number] if number < len(args) else kwargs[name])
        elif kind != _SEQUENCE:
            # asks the fake tensor itself: torch's own query for the device passes through all modes
            if device_of(output).type == "meta" if kind == _FAKE else output.is_meta:
                return output
            nbytes += nbytes_of(output)
            if op.fresh:
                account.hold(output, self._category(differentiable, args, kwargs))
        else:
            category = self._category(differentiable, args, kwargs)
            for item in output:
                if item.__class__ in COUNTED:
                    nbytes += nbytes_of(item)
                    if op.fresh:
                        account.hold(item, category)
        if op.grows:
            resized(account, args, kwargs)
        if op.moves is not None:
            nbytes = op.moves(args, output)
        if op.flops is None:
            seconds = self._moving.get(nbytes)
            if seconds is None:
                seconds = self._moving[nbytes] = self._gpu.seconds(0.0, nbytes, "float32")
        else:
            seconds = self._seconds(op, args, kwargs or {}, output, nbytes)
        self._compute(seconds)
        return output

    def _run(self, op: Operator, args: Any, kwargs: Any) -> Any:
        return op.call(*args, **kwargs) if kwargs else op.call(*args)

    def _free(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """Views, and allocations without writes: no time, but possibly memory."""
        account = self._account
        if op.creates:
            account.must_fit(bytes_to_create(args, kwargs))
        output = self._run(op, args, kwargs)
        if op.fresh:
            category = COMMUNICATION if op.communicates else self._category(False, args, kwargs)
            for tensor in output if output.__class__ in (list, tuple) else (output,):
                if COUNTED.get(tensor.__class__) not in (None, _SEQUENCE):
                    account.hold(tensor, category)
        elif args:
            # a layer's weight is used through a view
            kind = COUNTED.get(args[0].__class__)
            if kind == _PARAMETER or (kind == _FAKE and getattr(args[0], IS_PARAMETER, False)):
                account.is_parameter(args[0])
        if op.grows:
            resized(account, args, kwargs)
        return output

    def _category(self, differentiable: bool, args: Any, kwargs: Any) -> int:
        """The category of an operator's new tensor, as far as it is known when the tensor is created."""
        if self._account.on_host and self._account.reads_host((*args, *(kwargs or {}).values())):
            return HOST
        if self._account.in_optimizer:
            return OPTIMIZER
        return ACTIVATION if differentiable and torch.is_grad_enabled() else OTHER

    def _seconds(self, op: Operator, args: Any, kwargs: Any, output: Any, nbytes: int) -> float:
        key = (op, get_float32_matmul_precision(), *map(_shape, args), *kwargs, *map(_shape, kwargs.values()))
        seconds = self._working.get(key)
        if seconds is None:
            dtype = next(str(a.dtype) for a in args if isinstance(a, Tensor))
            if dtype == "torch.float32" and torch.get_float32_matmul_precision() != "highest":
                dtype = "tf32"
            assert op.flops is not None
            flops = op.flops(*args, **kwargs, out_val=output)
            if op.attention:
                seconds = self._gpu.attention_seconds(float(flops), nbytes, dtype, op.attention)
            else:
                seconds = self._gpu.seconds(float(flops), nbytes, dtype)
            self._working[key] = seconds
        return seconds


def _shape(argument: Any) -> Any:
    if argument.__class__ in COUNTED:
        return tuple(argument) if COUNTED[argument.__class__] == _SEQUENCE else (argument.shape, argument.dtype)
    return argument


def count_fake_tensors() -> None:
    """Count fake tensors, too: in a process in which all tensors are fake."""
    COUNTED[FakeTensor] = _FAKE


def bytes_to_create(args: Any, kwargs: Any) -> int:
    """Size of the tensor that an operator without tensors as arguments is to create."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    device = kwargs.get("device")
    sizes = next((a for a in args if isinstance(a, (list, tuple))), ())
    if device is not None and torch.device(device).type == "meta":
        return 0
    nbytes: int = dtype.itemsize
    for size in sizes:
        nbytes *= size
    return nbytes


def resized(account: MemoryAccount, args: Any, kwargs: Any) -> None:
    """Update tensors passed to an operator that may have resized or replaced their memory."""
    for argument in (*args, *(kwargs or {}).values()):
        if isinstance(argument, Tensor):
            account.resized(argument.untyped_storage())
            account.hold(argument, OTHER)
        elif isinstance(argument, (list, tuple)):
            resized(account, [item for item in argument if isinstance(item, Tensor)], {})
