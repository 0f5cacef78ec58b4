"""Activation checkpointing: what the backward pass needs is computed again, or kept elsewhere, instead of held.

Operators save tensors for their backward passes. `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` lets a
program decide what becomes of them: whatever `pack(tensor)` returns is held instead, and handed to `unpack` when the
backward pass asks. To keep a number in place of a tensor, and to make all tensors of a segment again when the first of
them is wanted, is checkpointing (Chen et al. 2016; Griewank & Walther 2000): n layers in k segments hold about k + n/k
layers' activations in place of n, least at k = sqrt(n), for at most one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from labkit import to_device, to_host

__all__ = ["checkpoint", "checkpoint_sequential", "offload_activations"]


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, and hold of it no more than `args` until the backward pass computes it once more.

    args: tensors, with or without gradients, and anything else; a tensor inside of a list counts as anything else.
    Gradients are those of a plain call, to the bit, those of parameters included, also by `torch.autograd.grad`. The
    second time random numbers (torch's, on the CPU and on the devices of `args`) and autocast are as they were the
    first time, and then again as they would be without it. What `function` sends, it sends twice: all ranks of a group
    must checkpoint alike. Calls may be nested. Without gradients it is a plain call.
    Raises ValueError when `function` cannot be called; RuntimeError in the backward pass when it saved fewer tensors
    than the first time, or when an argument has been changed in place. Values are not compared: the backward pass uses
    those of the second call.
    """
    if not callable(function):
        raise ValueError(f"function must be something to call, got {function!r}")
    if not torch.is_grad_enabled():
        return function(*args)
    call = _Call(function, args)
    with saved_tensors_hooks(call.pack, call.unpack):
        return function(*args)


class _Call:
    """One call of `checkpoint`: what it takes to do it again, and what it saved, while that is wanted.

    It lives as long as the graph that the call has made, whose nodes hold its hooks.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        self.function = function
        self.arguments = _Arguments(args)
        self.devices = _devices(args)
        self.autocast = _Autocast(self.devices)
        self.random_states = _random_states(self.devices)
        self.count = 0
        """Tensors that the function has saved."""
        self.recomputed: dict[int, Tensor] = {}
        """By number, in the order in which they were saved: those computed again and not asked for yet."""

    def pack(self, tensor: Tensor) -> int:
        """What is held in place of `tensor`."""
        # TODO 1. A number says which one it was: the first tensor that the function saves is 0, the next one is 1. The
        # tensor itself must not stay anywhere. `unpack` gives it back: to the backward pass, which asks once for each,
        # last ones first as a rule. The first time none of them is there. Hold none longer than it is wanted.
        ### BEGIN SOLUTION
        self.count += 1
        return self.count - 1
        ### END SOLUTION

    def unpack(self, number: int) -> Tensor:
        """The tensor in whose place `number` is held."""
        ### BEGIN SOLUTION
        if number not in self.recomputed:
            self.recomputed = self.recompute()
        return self.recomputed.pop(number)
        ### END SOLUTION

    def recompute(self) -> dict[int, Tensor]:
        """Call the function once more, as it was called before: the tensors that it saves, by their numbers.

        It stops when there are `count` of them: what comes after the last is not needed.
        """
        recomputed: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> None:
            # without its graph: the one of the first call is the one that gradients go through
            recomputed[len(recomputed)] = tensor.detach()
            if len(recomputed) == self.count:
                raise _Enough

        # TODO 2. Call `self.function(*self.arguments.again())` so that `keep` gets what it saves. It saves nothing
        # unless gradients are enabled, which they are not in a backward pass. `with suppress(_Enough), self.autocast:`
        # ends it early. Random numbers: `_random_states(self.devices)` reads them, `_set_random_states(states)` sets
        # them. Begin as the first call did; leave as if nothing had been drawn here, whatever happens in between.
        ### BEGIN SOLUTION
        now = _random_states(self.devices)
        _set_random_states(self.random_states)
        try:
            with torch.enable_grad(), saved_tensors_hooks(keep, _never), suppress(_Enough), self.autocast:
                self.function(*self.arguments.again())
        finally:
            _set_random_states(now)
        ### END SOLUTION

        if len(recomputed) < self.count:
            raise RuntimeError(
                f"{self.function!r} saved {self.count} tensors for its backward pass, but {len(recomputed)} when it "
                "was computed again: a checkpointed function must do the same each time"
            )
        return recomputed


def checkpoint_sequential(functions: nn.Sequential | Sequence[Callable[..., Any]], segments: int, input: Any) -> Any:
    """Return what `functions` make of `input`, one after the other, with all segments but the last one checkpointed.

    functions: each takes what the one before it returned. segments: from 1 to their number; they follow each other, and
    their lengths differ by one at most, the longer ones first. The last one's backward pass comes straight after it: to
    compute it again would save nothing. Raises ValueError, before any of them is called, for any other number.
    """
    functions = list(functions)
    if type(segments) is not int or not 1 <= segments <= len(functions):
        raise ValueError(f"segments must be from 1 to {len(functions)}, the number of functions; got {segments!r}")

    # TODO 3. Cut `functions` into `segments` parts. `_in_turn(part)` is a function that calls those of a part.
    ### BEGIN SOLUTION
    length, longer = divmod(len(functions), segments)
    begin = 0
    for number in range(segments - 1):
        end = begin + length + (number < longer)
        input = checkpoint(_in_turn(functions[begin:end]), input)
        begin = end
    return _in_turn(functions[begin:])(input)
    ### END SOLUTION


@contextmanager
def offload_activations(device: torch.device | str = "cpu") -> Iterator[None]:
    """Meanwhile, tensors that operators save for the backward pass are held on `device`; "cpu" is the host's memory.

    They come back when the backward pass asks for them: the same bits, dtype and, where elements do not overlap or lie
    apart, strides, on the device where they were. Parameters, which are held anyway, and views of them stay.
    Raises ValueError when `device` is none that can hold values.
    """
    target = _device(device)

    # TODO 4. `pack` returns what it takes to have the tensor again, on the device where it was. Parameters stay:
    # `_is_parameter(tensor)`. There is `_copy(tensor, target)`, and for the way back `to_device(copy, device)`. The
    # copy is what is held: nothing here may refer to the tensor itself any more. Last, `yield` under both hooks.
    ### BEGIN SOLUTION
    def pack(tensor: Tensor) -> Tensor | tuple[Tensor, torch.device]:
        return tensor if _is_parameter(tensor) else (_copy(tensor, target), tensor.device)

    def unpack(packed: Tensor | tuple[Tensor, torch.device]) -> Tensor:
        return packed if isinstance(packed, Tensor) else to_device(*packed)

    with saved_tensors_hooks(pack, unpack):
        yield
    ### END SOLUTION


def _copy(tensor: Tensor, to: torch.device) -> Tensor:
    """On `to`, whatever becomes of `tensor`. On a virtual rank, whose GPU is modelled, "cpu" is the host's memory."""
    return to_host(tensor) if to.type == "cpu" else tensor.detach().to(to, copy=True)


def _device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one that torch knows, got {device!r}") from None
    if found.type == "meta":
        raise ValueError(f"device must hold values, got {device!r}")
    return found


def _is_parameter(tensor: Tensor) -> bool:
    """A parameter, or a view of one: a linear layer saves its weight transposed."""
    return isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)


def _in_turn(functions: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return run


class _Enough(BaseException):
    """All that was saved is there again. No `Exception`, which the function may catch."""


def _never(packed: Any) -> Tensor:
    raise AssertionError("nobody goes backward through what was computed again")


class _Arguments:
    """Arguments of a call, whose tensors are saved as an operator saves its inputs.

    So a checkpoint around this one holds them as it holds all else, and a change in place is noticed.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        self._others = [None if isinstance(arg, Tensor) else arg for arg in args]
        self._places = [place for place, arg in enumerate(args) if isinstance(arg, Tensor)]
        saved: Tensor = _Save.apply(torch.empty(0, requires_grad=True), *tensors)  # type: ignore[no-untyped-call]  # torch has no types for it
        self._node: Any = saved.grad_fn

    def again(self) -> list[Any]:
        """Tensors are cut off from the graph that made them: gradients go through the first call's."""
        found = list(self._others)
        for place, tensor in zip(self._places, self._node.saved_tensors, strict=True):
            found[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        return found


class _Save(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing was made of it")


class _Autocast:
    """Autocast as it is now, on these kinds of device: a context to have it so again."""

    def __init__(self, devices: set[torch.device]) -> None:
        self._contexts = [
            torch.autocast(
                kind,
                dtype=torch.get_autocast_dtype(kind),
                enabled=torch.is_autocast_enabled(kind),
                cache_enabled=torch.is_autocast_cache_enabled(),
            )
            for kind in sorted({device.type for device in devices})
        ]
        self._entered = ExitStack()

    def __enter__(self) -> None:
        for context in self._contexts:
            self._entered.enter_context(context)

    def __exit__(self, *error: Any) -> None:
        self._entered.close()


def _devices(args: Sequence[Any]) -> set[torch.device]:
    """The CPU, and the GPUs on which there are tensors of `args`."""
    found = {arg.device for arg in args if isinstance(arg, Tensor)}
    return {torch.device("cpu")} | {device for device in found if device.type in ("cuda", "xpu")}


def _random_states(devices: set[torch.device]) -> dict[torch.device, Tensor]:
    """Of torch's random numbers, for each device."""
    return {
        device: torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        for device in devices
    }


def _set_random_states(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
