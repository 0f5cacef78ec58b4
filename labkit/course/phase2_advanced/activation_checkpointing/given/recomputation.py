"""State of a call that is to be repeated: its arguments, autocast and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor


class AllRecomputed(BaseException):
    """Raised to end the second call of a function, once it has saved all tensors that the first call saved.

    Not an `Exception`, which the function might catch.
    """


def never_unpack(packed: Any) -> Tensor:
    """Raise AssertionError: the `unpack` of a second call's tensors, since no backward pass goes through its graph."""
    raise AssertionError("a backward pass went through what was computed again")


class SavedArguments:
    """Arguments of a call, whose tensors are saved as an operator saves its inputs.

    So a checkpoint around the call replaces them like all else that is saved, and a change in place is noticed.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        self._others = [None if isinstance(arg, Tensor) else arg for arg in args]
        self._places = [place for place, arg in enumerate(args) if isinstance(arg, Tensor)]
        # keep this tensor: in torch 2.11 a node frees its saved tensors along with the last tensor that it made
        self._saved: Any = _Save.apply(torch.empty(0, requires_grad=True), *tensors)  # type: ignore[no-untyped-call]  # torch has no types for it

    def again(self) -> list[Any]:
        """Return the arguments; tensors are detached, since gradients go through the first call's graph.

        Raises RuntimeError if one has been changed in place.
        """
        arguments = list(self._others)
        for place, tensor in zip(self._places, self._saved.grad_fn.saved_tensors, strict=True):
            arguments[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        return arguments


class _Save(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing was computed from it")


class SavedAutocast:
    """A context in which autocast is as it was when this was made, on these kinds of device."""

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


def devices_of(args: Sequence[Any]) -> set[torch.device]:
    """Return the CPU, and the GPUs on which there are tensors of `args`."""
    devices = {arg.device for arg in args if isinstance(arg, Tensor)}
    return {torch.device("cpu")} | {device for device in devices if device.type in ("cuda", "xpu")}


def random_states(devices: set[torch.device]) -> dict[torch.device, Tensor]:
    """Return the states of torch's random number generators, by device."""
    return {
        device: torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        for device in devices
    }


def set_random_states(states: dict[torch.device, Tensor]) -> None:
    """Set torch's random number generators to states returned by `random_states`."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
