"""Activation checkpointing: what the backward pass needs is computed again, or held elsewhere, instead of kept.

Operators save tensors for their backward passes. `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` lets a
program replace them: whatever `pack(tensor)` returns is held instead, and passed to `unpack` when the backward pass
needs the tensor. To hold a number instead, and to compute all tensors of a segment again when the first of them is
needed, is checkpointing (Chen et al. 2016; Griewank & Walther 2000): n layers in k segments hold the activations of
about k + n/k layers instead of n, least at k = sqrt(n), for at most one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from labkit import to_device, to_host
from labkit.course.phase2_advanced.activation_checkpointing.given.offloading import is_parameter, storage_device
from labkit.course.phase2_advanced.activation_checkpointing.given.recomputation import (
    AllRecomputed,
    SavedArguments,
    SavedAutocast,
    devices_of,
    never_unpack,
    random_states,
    set_random_states,
)

__all__ = ["checkpoint", "checkpoint_sequential", "offload_activations"]


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, and hold no more than `args` until the backward pass calls the function again.

    args: tensors, with or without gradients, and anything else; a tensor inside of a list counts as anything else.
    Gradients, also those of parameters and by `torch.autograd.grad`, equal a plain call's to the bit. The second call
    has the first one's random numbers (torch's, on the CPU and on the devices of `args`) and autocast; what is drawn
    afterwards is what would be drawn without it. What `function` sends, it sends twice: all ranks of a group must
    checkpoint alike. Calls may be nested. If gradients are disabled, it is a plain call.
    Raises ValueError if `function` cannot be called; RuntimeError in the backward pass if the second call saved fewer
    tensors than the first, or an argument has been changed in place. Values are not compared: the backward pass uses
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
    """One call of `checkpoint`: what it takes to repeat it, and what it saved, while that is needed.

    It lives as long as the graph that the call has made, whose nodes hold its hooks.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        self.function = function
        self.arguments = SavedArguments(args)
        self.devices = devices_of(args)
        self.autocast = SavedAutocast(self.devices)
        self.random_states = random_states(self.devices)
        self.count = 0
        """Number of tensors that the function has saved."""
        self.recomputed: dict[int, Tensor] = {}
        """Tensors computed again and not asked for yet, by number, in the order in which they were saved."""

    def pack(self, tensor: Tensor) -> int:
        """Return what is held in place of `tensor`."""
        # TODO 1. A number identifies it: the first tensor that the function saves is 0, the next one is 1.
        # The tensor itself must not stay anywhere. `unpack` returns it to the backward pass, which asks once for each,
        # last ones first as a rule. The first time none of them is there. Hold none longer than it is needed.
        # YOUR CODE HERE
        raise NotImplementedError()

    def unpack(self, number: int) -> Tensor:
        """Return the tensor in whose place `number` is held."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def recompute(self) -> dict[int, Tensor]:
        """Call the function again, as it was called before, and return the tensors that it saves, by number.

        The call ends when there are `count` of them: what comes after the last is not needed.
        """
        recomputed: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> None:
            # without its graph: gradients go through the first call's
            recomputed[len(recomputed)] = tensor.detach()
            if len(recomputed) == self.count:
                raise AllRecomputed

        # TODO 2. Call `self.function(*self.arguments.again())` so that `keep` gets what it saves; nothing asks for it,
        # so `unpack` is `never_unpack`. An operator saves nothing unless gradients are enabled, which they are not in a
        # backward pass. `with suppress(AllRecomputed), self.autocast:` ends the call early. Random numbers:
        # `random_states(self.devices)` reads their states, `set_random_states(states)` sets them. Begin as the first
        # call did; leave as if nothing had been drawn here, even if the function raises.
        # YOUR CODE HERE
        raise NotImplementedError()

        if len(recomputed) < self.count:
            raise RuntimeError(
                f"{self.function!r} saved {self.count} tensors for its backward pass, but {len(recomputed)} when it "
                "was computed again: a checkpointed function must do the same each time"
            )
        return recomputed


def checkpoint_sequential(functions: nn.Sequential | Sequence[Callable[..., Any]], segments: int, input: Any) -> Any:
    """Apply `functions` to `input`, one after the other, with all segments but the last checkpointed.

    functions: each takes what the one before it returned. segments: how many consecutive parts, from 1 to the number of
    functions; lengths differ by one at most, the longer ones first. The last one's backward pass comes at once: to
    compute it again would save nothing. Raises ValueError, before any call, for any other number.
    """
    functions = list(functions)
    if type(segments) is not int or not 1 <= segments <= len(functions):
        raise ValueError(f"segments must be from 1 to {len(functions)}, the number of functions; got {segments!r}")

    # TODO 3. Cut `functions` into `segments` parts. `_in_turn(part)` is a function that calls those of a part.
    # YOUR CODE HERE
    raise NotImplementedError()


def _in_turn(functions: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return run


@contextmanager
def offload_activations(device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the `with` block, hold what operators save for the backward pass on `device`; "cpu" is the host's memory.

    They come back when the backward pass needs them: with the same bits, dtype and (unless elements overlap or have
    gaps between them) strides, on the device where they were. Parameters and views of them, which are held anyway,
    stay. Raises ValueError if `device` cannot hold values.
    """
    target = storage_device(device)

    # TODO 4. `pack` returns what it takes to have the tensor again, on the device where it was. Parameters stay:
    # `is_parameter(tensor)`. There is `_copy(tensor, target)`, and for the way back `to_device(copy, device)`. Only the
    # copy is held: nothing here may refer to the tensor itself any more. Last, `yield` under both hooks.
    # YOUR CODE HERE
    raise NotImplementedError()


def _copy(tensor: Tensor, to: torch.device) -> Tensor:
    """Return a copy on `to`. On a virtual rank, whose GPU is modelled, "cpu" is the host's memory."""
    return to_host(tensor) if to.type == "cpu" else tensor.detach().to(to, copy=True)
