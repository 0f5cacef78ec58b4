"""Programs on ranks of zero's checks: SGD of a model whose gradients are known, and the unit of their traffic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from labkit.trace import Event


def stack(sizes: list[int], forward: Any = None, backward: Any = None, tied: bool = False) -> Any:
    """Layers with so many weights, all 0. The gradient of each weight is the factor that the model is called with.

    forward, backward: called in each layer's pass. tied: the first and the last layer have one weight, a parameter is
    frozen, and activations are computed again.
    """

    class Busy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            if forward is not None:
                forward()
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if backward is not None:
                backward()
            return grad

    class Layer(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(size))
            self.reset_parameters()

        def reset_parameters(self) -> None:
            nn.init.zeros_(self.weight)

        def forward(self, x: Any) -> Any:
            apply: Any = Busy.apply
            return apply(x + (x / 1).detach() * self.weight.sum())

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(map(Layer, sizes))
            self.scale = nn.Parameter(torch.zeros(1), requires_grad=not tied)
            if tied:
                first: Any = self.layers[0]
                last: Any = self.layers[-1]
                last.weight = first.weight

        def reset_parameters(self) -> None:
            nn.init.zeros_(self.scale)

        def forward(self, factor: float) -> Any:
            x = torch.full((1,), factor, requires_grad=True) + 0 * self.scale
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if tied else layer(x)
                x = x - x.detach() + factor
            return x

    return Stack()


def sgd_steps(
    stage: int,
    model: Any,
    factors: list[float],
    norm: float = 0.0,
    mark: Any = None,
    momentum: float = 0.0,
    group: Any = None,
    **options: Any,
) -> tuple[Any, list[float]]:
    """On a rank: take a step for each factor; return the model, of stage 3 the wrapped one, and norms before clipping.

    norm: clip to it; 0: do not. mark: called before each step, before and after its backward pass, and after it.
    """
    from labkit.exercises import zero

    mark = mark or (lambda: None)
    owner: Any
    steps: Any
    if stage == 3:
        owner = model = zero.FullyShardedDataParallel(model, group, **options)
        steps = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    else:
        make = torch.optim.SGD
        owner = steps = zero.ZeroOptimizer(model.parameters(), make, stage, group, lr=1.0, momentum=momentum, **options)
    norms = []
    for factor in factors:
        mark()
        outputs = model(factor)
        mark()
        outputs.sum().backward()
        mark()
        if norm:
            norms.append(owner.clip_grad_norm_(norm).item())
        steps.step()
        mark()
        steps.zero_grad()
    return model, norms


def joined(cases: list[tuple[list[Tensor], int]]) -> list[Tensor]:
    """On a rank: join the tensors of each case for so many ranks."""
    from labkit.exercises import zero

    return [zero.ZeroOptimizer.join(tensors, ranks) for tensors, ranks in cases]


def volume(event: Event, ranks: int) -> int:
    """Return the bytes of a collective as it is counted in whole models: an all-reduce counts twice."""
    if event.operation.startswith("all_gather"):
        return event.nbytes * ranks
    return event.nbytes * (2 if event.operation.startswith("all_reduce") else 1)
