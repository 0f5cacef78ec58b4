"""Programs on ranks of expert_parallel's checks, and all experts in one process, which ranks must equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from labkit.course.flop_work import FlopWork
from labkit.course.phase3_multi_node.expert_parallel.given import Routing
from labkit.course.phase3_multi_node.expert_parallel.given.dense import dense_moe

# What runs on the ranks -----------------------------------------------------------------------------------------------


def routed(
    x: Tensor, gate: Tensor, top_k: int, factor: float | None = None, gradient: Tensor | None = None
) -> dict[str, Any]:
    """On a rank: route tokens, and go backward from the loss, with `gradient` also from the weights, times it."""
    from labkit.exercises import expert_parallel

    router = expert_parallel.TopKRouter(gate.shape[1], gate.shape[0], top_k, factor).to(gate.dtype)
    with torch.no_grad():
        router.gate.weight.copy_(gate)
    x = x.clone().requires_grad_()
    routing = router(x)
    (routing.loss if gradient is None else (routing.weights * gradient).sum() + routing.loss).backward()
    found = {"experts": routing.experts, "weights": routing.weights.detach(), "loss": routing.loss.detach()}
    found |= {"kept": routing.kept, "dropped": routing.dropped, "x": x.grad, "gate": router.gate.weight.grad}
    return {name: None if tensor is None else tensor.contiguous() for name, tensor in found.items()}


def travelled(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    kept: Tensor,
    num_experts: int,
    factors: Sequence[float] | None = None,
    gradient: Any = None,
    group: Any = None,
) -> dict[str, Any]:
    """On a rank: dispatch tokens to given experts. factors: multiply each batch by one, combine, and go backward."""
    from labkit.exercises import expert_parallel

    x, weights = x.requires_grad_(), weights.clone().requires_grad_()
    routing = Routing(experts, weights, kept, torch.zeros(()), num_experts)
    batches, journey = expert_parallel.dispatch(x, routing, group)
    found: dict[str, Any] = {"batches": [batch.detach().contiguous() for batch in batches]}
    if factors is not None:
        out = expert_parallel.combine([b * f for b, f in zip(batches, factors, strict=True)], journey)
        out.backward(gradient)
        found |= {"out": out.detach()}
        for name, tensor in (("x", x), ("weights", weights)):
            found[name] = None if tensor.grad is None else tensor.grad.contiguous()
    return found


def layered(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    top_k: int,
    factor: Any,
    gradient: Tensor,
    group: Any = None,
    replicas: Any = None,
    all_ranks: Any = None,
    average: bool = False,
    mark: Any = None,
    row: Any = None,
    flops: float = 1.0,
) -> dict[str, Any]:
    """On a rank: a forward and a backward pass of a layer with these weights; up and down are this rank's experts.

    mark: called before each pass, and last. row: called for each number of `flops`.
    """
    from labkit.exercises import expert_parallel

    layer = expert_parallel.ExpertParallelMoE(gate.shape[1], up.shape[2], gate.shape[0], top_k, group, factor)
    layer = layer.to(x.dtype)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), (gate, up, down), strict=True):
            parameter.copy_(value)
    x = x.clone().requires_grad_()
    with ExitStack() as stack:
        if row is not None:
            stack.enter_context(FlopWork(row, flops))
        marks = (lambda: None) if mark is None else mark
        marks()
        out = layer(x)
        marks()
        ((out * gradient).sum() + layer.routing.loss).backward()
        marks()
    if average:
        expert_parallel.average_gradients(layer, replicas, all_ranks)
    found = {"out": out.detach(), "x": x.grad, "dropped": layer.routing.dropped}
    names = ("gate", "up", "down")
    found |= {name: parameter.grad for name, parameter in zip(names, layer.parameters(), strict=True)}
    return {name: None if tensor is None else tensor.contiguous() for name, tensor in found.items()}


# What must come out ---------------------------------------------------------------------------------------------------


class Dense:
    """All experts in one process: results, drops and gradients for the tokens of each rank, computed in float64.

    tokens, gradients: (tokens, width) of each rank; the loss of a rank is the sum of its results times `gradients`, and
    the load-balancing loss. weights: gate, up and down, with all experts.
    """

    def __init__(
        self,
        tokens: Sequence[Tensor],
        gradients: Sequence[Tensor],
        weights: tuple[Tensor, Tensor, Tensor],
        top_k: int,
        factor: float | None,
    ) -> None:
        self.tokens, self.gradients, self.top_k, self.factor = tokens, gradients, top_k, factor
        self.gate, self.up, self.down = weights
        inputs = [_leaf(x) for x in tokens]
        whole = gate, up, down = [_leaf(x) for x in weights]
        results, losses, self.kept = zip(*(dense_moe(x, gate, up, down, top_k, factor) for x in inputs), strict=True)
        pairs = zip(results, gradients, losses, strict=True)
        torch.autograd.backward([(out * gradient).sum() + loss for out, gradient, loss in pairs])
        kind = self.gate.dtype
        self.results = [out.detach().to(kind) for out in results]
        self.dropped = [(~kept).sum() for kept in self.kept]
        self.x = [x.grad.to(kind) for x in inputs if x.grad is not None]
        self.sums = [x.grad.to(kind) for x in whole if x.grad is not None]
        """Gradients of gate, up and down, for the sum of the losses of all ranks."""

    def own(self, tensor: Tensor, size: int) -> list[Tensor]:
        """Return each rank's part of a tensor whose rows are experts, in groups of `size` ranks."""
        each = len(tensor) // size
        return [tensor[place % size * each :][:each] for place in range(len(self.tokens))]


def _leaf(x: Tensor) -> Tensor:
    return x.to(torch.float64, copy=True).requires_grad_()
