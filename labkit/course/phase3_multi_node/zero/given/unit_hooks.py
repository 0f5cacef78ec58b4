"""Calls around a unit: before and after its forward pass, before its backward pass, and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.torch_versions.groups import backward_pass_number
from labkit.torch_versions.tensors import tree_flatten, tree_map, tree_unflatten


class _AfterBackward(torch.autograd.Function):
    """Identity whose backward pass runs when those of all that was computed from its results are done."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call()
        return None, *gradients


def within_backward() -> bool:
    """Return whether a backward pass is under way, as when activations are computed again."""
    return backward_pass_number() != -1


def watch(
    module: nn.Module,
    before_forward: Callable[[], None],
    after_forward: Callable[[], Callable[[], None]],
    after_backward: Callable[[], None],
) -> None:
    """Have these functions called around each forward pass of the module, and each backward pass.

    after_forward returns what to call before the backward pass. after_backward is not called where no input requires
    a gradient.
    """

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        before_forward()
        return call_after_backward(after_backward, (args, kwargs))

    def after(_: nn.Module, args: Any, output: Any) -> None:
        call_before_backward(after_forward(), output)

    module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    module.register_forward_hook(after)


def call_after_backward(call: Callable[[], None], inputs: Any) -> Any:
    """Return the inputs, so that `call()` runs when the gradients of all that require one are known."""
    leaves, structure = tree_flatten(inputs)
    needed = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not needed or not torch.is_grad_enabled():
        return inputs
    same: Any = _AfterBackward.apply(call, *(leaves[n] for n in needed))  # type: ignore[no-untyped-call]
    for n, tensor in zip(needed, same, strict=True):
        leaves[n] = tensor
    return tree_unflatten(leaves, structure)


def call_before_backward(call: Callable[[], None], outputs: Any) -> bool:
    """Have `call()` called when a gradient of one of the outputs is known; return whether one requires a gradient."""
    requires_grad = False
    for leaf in tree_flatten(outputs)[0]:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(lambda _: call())
            requires_grad = True
    return requires_grad


def cast(values: Any, dtype: torch.dtype | None) -> Any:
    """Return the values with all floating-point tensors in `dtype`, or unchanged if it is None."""
    if dtype is None:
        return values
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, values)
