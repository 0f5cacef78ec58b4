"""Programs on ranks of ddp's checks: passes through layers with given gradients, and the calls that save a file."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def layers(sizes: list[int], dtypes: list[str], start: float = 0.0) -> Any:
    """Layers whose gradients are given: forward uses those in `order`, and backward goes the other way."""

    class Busy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, backward: Any) -> Any:
            ctx.backward_work = backward
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.backward_work is not None:
                ctx.backward_work()
            return grad, None

    class Layers(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(
                torch.full((size,), start, dtype=getattr(torch, dtype))
                for size, dtype in zip(sizes, dtypes, strict=True)
            )
            self.register_buffer("calls", torch.full((2,), start))
            self.register_buffer("count", torch.tensor(int(start)))

        def forward(self, gradients: list[torch.Tensor], order: list[int], backward: Any = None) -> Any:
            self.calls += gradients[0][0]
            outputs = torch.zeros(1, dtype=torch.float64)
            for place in order:
                product = (self.weights[place] * gradients[place]).sum()
                apply: Any = Busy.apply
                outputs = apply(outputs + product, backward)
            return outputs

    return Layers()


def passes(
    gradients: list[Tensor],
    orders: list[list[int]],
    cap: float = 25,
    backward: Any = None,
    mark: Any = None,
    start: float = 0.0,
    frozen: Sequence[int] = (),
    without_sync: int = 0,
    together: bool = False,
    clear: bool = True,
    hook: tuple[float, float] | None = None,
    group: Any = None,
    **options: Any,
) -> Any:
    """On a rank: one forward and backward pass for each order; return `grad` after each.

    cap: of a bucket, in MiB. without_sync: so many first passes are within `no_sync()`. together: one backward pass
    after all forward passes. clear: with `zero_grad` between two passes. hook: register a communication hook that
    multiplies the mean by the first number and adds the second. A pass without an order has a loss that depends on no
    parameter.
    """
    from labkit.exercises import ddp

    model = layers([len(g) for g in gradients], [str(g.dtype).split(".")[1] for g in gradients], start)
    for place in frozen:
        model.weights[place].requires_grad_(False)
    wrapped = ddp.DistributedDataParallel(model, group, cap, **options)

    def changed_mean(state: Any, bucket: Any) -> Any:
        state.append((bucket.index(), bucket.is_last(), len(bucket.parameters()), len(bucket.gradients())))
        factor, offset = hook or (1.0, 0.0)
        mean = factor * bucket.buffer() / dist.get_world_size(group) + offset
        work = dist.all_reduce(mean, group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    calls: list[Any] = []
    if hook:
        wrapped.register_comm_hook(calls, changed_mean)
    found, outputs, buffers = [], [], []
    for number, order in enumerate(orders):
        with wrapped.no_sync() if number < without_sync else contextlib.nullcontext():
            if mark is not None:
                mark()
            if number and clear:
                wrapped.zero_grad()
            outputs.append(wrapped(gradients, order, backward).sum())
            if not order:
                wrapped.finish_gradient_synchronization()
            elif not together or number == len(orders) - 1:
                (sum(outputs) if together else outputs[-1]).backward()
        found.append([None if w.grad is None else w.grad.clone() for w in model.weights])
        buffers.append(model.calls[0].item())
    if mark is not None:
        mark()
    storages = {weight.grad.untyped_storage().data_ptr() for weight in model.weights if weight.grad is not None}
    return {
        "grads": found,
        "storages": len(storages),
        "calls": calls,
        "buffers": buffers,
        "state": [model.weights[0][0].item(), model.count.item()],
        "keys": sorted(wrapped.state_dict()),
    }


def noted_calls(path: str) -> Iterator[list[str]]:
    """On a rank: yield a list of the calls of `os.fsync` for files, and of `os.replace` for this path or for others."""
    calls: list[str] = []
    replace, fsync = os.replace, os.fsync

    def replaced(source: Any, target: Any, **how: Any) -> None:
        calls.append("replace" if os.fspath(target) == path else "elsewhere")
        replace(source, target, **how)

    def synced(file: Any) -> None:
        if not stat.S_ISDIR(os.stat(file).st_mode):  # save itself calls it for the folder
            calls.append("fsync")
        fsync(file)

    patched: Any = os
    patched.replace, patched.fsync = replaced, synced
    try:
        yield calls
    finally:
        patched.replace, patched.fsync = replace, fsync
