"""Cost of a virtual rank's operators: each one advances the rank's clock and updates its memory account.

One dispatch mode around the rank's whole program sees every operator, including those of backward passes, optimizers,
DDP and FSDP. An operator takes the time of a roofline (`labkit.hardware.GPU.seconds`) over its FLOPs, which torch's
flop counter knows for matrix products, convolutions and attention, and over the bytes that it reads and writes.
Views are free; an in-place operator reads and writes its tensor; nothing is charged on the `meta` device.

This code runs for hundreds of thousands of operators, so it takes as few steps as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, get_float32_matmul_precision
from torch.nn import Buffer, Parameter

from labkit.clusters.virtual.device import memory
from labkit.clusters.virtual.device.fake import Answer, NewResult, Shapes, made
from labkit.clusters.virtual.device.fake import answer as answer_of
from labkit.clusters.virtual.device.fake import key as key_of
from labkit.clusters.virtual.device.memory import ACTIVATION, COMMUNICATION, OPTIMIZER, OTHER, MemoryAccount
from labkit.clusters.virtual.device.operators import Operator, known, operator
from labkit.clusters.virtual.device.operators import nbytes as nbytes_of
from labkit.clusters.virtual.device.torch_hooks import install_torch_hooks
from labkit.clusters.virtual.endpoints.endpoint import Endpoint
from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
from labkit.hardware import GPU, Topology
from labkit.torch_versions.dispatch import DisableTorchDispatch, UnguardedDispatchMode
from labkit.torch_versions.fake_tensors import DEVICE_QUERY, FakeTensor, device_of
from labkit.torch_versions.tensors import (
    IS_PARAMETER,
    meshes_apart,
    objects_without_modes,
    shapes_of_dtensors_apart,
)
from labkit.trace import MemorySample

_TENSOR, _PARAMETER, _FAKE, _SEQUENCE = range(1, 5)
_KINDS: dict[Any, int] = {Tensor: _TENSOR, Buffer: _TENSOR, Parameter: _PARAMETER, list: _SEQUENCE, tuple: _SEQUENCE}


class Costs:
    """Seconds of operators on one GPU, for all ranks of the process."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.moving: dict[int, float] = {}
        """Of an operator without FLOPs, by bytes."""
        self.working: dict[Any, float] = {}
        """Of an operator with FLOPs, by everything that its FLOPs depend on."""


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
            if kind not in _KINDS:
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
            kind = _KINDS.get(argument.__class__)
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
                    if item.__class__ in _KINDS:
                        nbytes += nbytes_of(item)
                        differentiable = differentiable or item.requires_grad
        if kwargs:
            for argument in kwargs.values():
                kind = _KINDS.get(argument.__class__)
                if kind is not None and kind != _SEQUENCE and not op.grows:
                    nbytes += nbytes_of(argument)
        if not op.reads_first:
            nbytes -= nbytes_of(args[0])
        if op.creates:
            account.must_fit(_bytes_to_create(args, kwargs or {}))
        if op.seeded and self._claim is not None:
            self._claim()

        output = self._run(op, args, kwargs)

        kind = _KINDS.get(output.__class__)
        if kind is None:
            for number, name in op.rewrites:
                nbytes += nbytes_of(args[number] if number < len(args) else kwargs[name])
        elif kind != _SEQUENCE:
            # asks the fake tensor itself: torch's own query for the device passes through all modes
            if device_of(output).type == "meta" if kind == _FAKE else output.is_meta:
                return output
            nbytes += nbytes_of(output)
            if op.fresh:
                account.hold(output, self._category(differentiable))
        else:
            category = self._category(differentiable)
            for item in output:
                if item.__class__ in _KINDS:
                    nbytes += nbytes_of(item)
                    if op.fresh:
                        account.hold(item, category)
        if op.grows:
            _resized(account, args, kwargs)
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
            account.must_fit(_bytes_to_create(args, kwargs))
        output = self._run(op, args, kwargs)
        if op.fresh:
            category = COMMUNICATION if op.communicates else self._category(False)
            for tensor in output if output.__class__ in (list, tuple) else (output,):
                if tensor.__class__ in _KINDS:
                    account.hold(tensor, category)
        elif args:
            # a layer's weight is used through a view
            kind = _KINDS.get(args[0].__class__)
            if kind == _PARAMETER or (kind == _FAKE and getattr(args[0], IS_PARAMETER, False)):
                account.is_parameter(args[0])
        if op.grows:
            _resized(account, args, kwargs)
        return output

    def _category(self, differentiable: bool) -> int:
        """The category of a new tensor, as far as it is known when the tensor is created."""
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


class FakeAccounting(Accounting):
    """Accounting on fake tensors: an operator that any rank has run on such shapes takes little more than a look-up.

    What depends on more than shapes happens each time: marking parameters, counting new memory.
    """

    def __init__(self, shapes: Shapes, *rest: Any) -> None:
        super().__init__(*rest)
        self._shapes = shapes
        self._answers = shapes.answers
        self._charge, self._compute = self._compute, self._charged
        self._seconds_charged: float | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is DEVICE_QUERY:  # half of all calls
            argument = args[0]
            return device_of(argument) if argument.__class__ is FakeTensor else NotImplemented
        op = known.get(id(function)) or operator(function)
        key = key_of(op, args, kwargs)
        answer = self._answers.get(key) if key is not None else None
        if answer is not None:
            return self._known(op, answer, args, kwargs)
        self._seconds_charged = None
        output = super().__torch_dispatch__(function, types, args, kwargs)
        if key is not None and key_of(op, args, kwargs) == key:  # else it has changed an argument's shape
            answer = answer_of(op, output, args, kwargs or {})
            if answer is not None:
                answer.seconds = self._seconds_charged
                self._answers[key] = answer
        return output

    def _charged(self, seconds: float) -> None:
        self._seconds_charged = seconds
        self._charge(seconds)

    def _run(self, op: Operator, args: Any, kwargs: Any) -> Any:
        return self._shapes.run(op, args, kwargs or {})

    def _known(self, op: Operator, answer: Answer, args: Any, kwargs: Any) -> Any:
        """An operator with known results and cost, in the same order as when it is computed."""
        account = self._account
        for number in answer.marked:
            if getattr(args[number], IS_PARAMETER):
                account.is_parameter(args[number])
        if op.creates:
            account.must_fit(_bytes_to_create(args, kwargs or {}))
        if op.seeded and self._claim is not None:
            self._claim()
        with DisableTorchDispatch():
            outputs = [made(result, args) for result in answer.results]
        if op.fresh:
            category = COMMUNICATION if op.free and op.communicates else self._category(False)
            if category == OTHER and not op.free and _differentiable(args):
                category = self._category(True)
            for output, result in zip(outputs, answer.results, strict=True):
                if result.__class__ is NewResult:
                    if result.nbytes >= 0:
                        account.hold_new(output.untyped_storage(), result.nbytes, category)
                elif output is not None:
                    account.hold(output, category)
        if op.grows:
            _resized(account, args, kwargs)
        if answer.seconds is not None:
            self._charge(answer.seconds)
        if answer.kind is FakeTensor:
            return outputs[0]
        return answer.kind(outputs) if outputs else None


def _differentiable(args: Any) -> bool:
    """Whether a tensor of these requires a gradient."""
    for argument in args:
        if argument.__class__ is FakeTensor:
            if argument.requires_grad:
                return True
        elif argument.__class__ is list and any(i.__class__ is FakeTensor and i.requires_grad for i in argument):
            return True
    return False


def _shape(argument: Any) -> Any:
    if argument.__class__ in _KINDS:
        return tuple(argument) if _KINDS[argument.__class__] == _SEQUENCE else (argument.shape, argument.dtype)
    return argument


def _bytes_to_create(args: Any, kwargs: Any) -> int:
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    device = kwargs.get("device")
    sizes = next((a for a in args if isinstance(a, (list, tuple))), ())
    if device is not None and torch.device(device).type == "meta":
        return 0
    nbytes: int = dtype.itemsize
    for size in sizes:
        nbytes *= size
    return nbytes


def _resized(account: MemoryAccount, args: Any, kwargs: Any) -> None:
    """Update tensors passed to an operator that may have resized or replaced their memory."""
    for argument in (*args, *(kwargs or {}).values()):
        if isinstance(argument, Tensor):
            account.resized(argument.untyped_storage())
            account.hold(argument, OTHER)
        elif isinstance(argument, (list, tuple)):
            _resized(account, [item for item in argument if isinstance(item, Tensor)], {})


def report_to_accounts() -> None:
    """Register torch's reports to the accounts of this process and of those forked from it."""
    meshes_apart()
    install_torch_hooks()


class Ledger:
    """The accounts of the ranks of one process. Create one per process: torch is set up to report to them."""

    def __init__(
        self, topology: Topology, account: bool, shapes_only: bool = False, claim: Callable[[int], None] | None = None
    ) -> None:
        """Without `account` nothing is counted. With `shapes_only` all tensors are fake.

        `claim(rank)` is called before that rank draws random numbers.
        """
        self._shapes = Shapes() if shapes_only else None
        if shapes_only:
            _KINDS[FakeTensor] = _FAKE
        self._topology = topology
        self._costs = Costs(topology.gpu)
        self._claim = claim
        self._account = account
        self._accounts: list[MemoryAccount] = []
        if account or shapes_only:
            meshes_apart()
            shapes_of_dtensors_apart()
        if shapes_only:
            objects_without_modes()
        if account:
            report_to_accounts()

    @contextmanager
    def counting(self, endpoint: Endpoint) -> Iterator[None]:
        """Within the context, charge this thread's work to `endpoint`'s clock and to a memory account of its own."""
        with self._shapes.mode if self._shapes else nullcontext():
            if self._account:
                with self._charging(endpoint):
                    yield
            else:
                yield

    @contextmanager
    def _charging(self, endpoint: Endpoint) -> Iterator[None]:
        gpu = self._topology.gpu
        account = MemoryAccount(
            endpoint.rank, int(gpu.memory_gb * 1e9), gpu.name, lambda: endpoint.now, self._topology.world_size
        )
        self._accounts.append(account)
        claim = None if self._claim is None else partial(self._claim, endpoint.rank)
        charged = self._costs, endpoint.compute, account, endpoint.race_detector, claim
        with (
            memory.counted_on(memory.Device(account, endpoint, self._topology)),
            FakeAccounting(self._shapes, *charged) if self._shapes else Accounting(*charged),
        ):
            yield
        account.close()

    def samples(self) -> tuple[MemorySample, ...]:
        """Memory of all ranks over time."""
        samples = [sample for account in self._accounts for sample in account.samples()]
        return tuple(sorted(samples, key=lambda sample: (sample.time, sample.rank)))
