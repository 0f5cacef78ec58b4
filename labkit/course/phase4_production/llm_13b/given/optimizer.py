"""AdamW for 16-bit weights: the step is taken on a float32 copy, which is part of the optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.zero.given.optimizer_state import no_grad_loss


class MasterAdamW(Optimizer):
    """AdamW (Loshchilov & Hutter 2019). A parameter in 16 bits has a float32 copy in its state, "master".

    That is 2 + 2 + 12 bytes for a parameter: weight, gradient, and the copy with two moments, which `ZeroOptimizer`
    shards and exercise 20 saves like any other state. Parameters in float32 and float64 have no copy.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = no_grad_loss(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        is_half = parameter.element_size() == 2
        if not state:
            state["step"] = 0
            if is_half:
                state["master"] = parameter.float()
            wide = state.get("master", parameter)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(wide), torch.zeros_like(wide)
        state["step"] += 1
        gradient = parameter.grad.to(state["exp_avg"].dtype)  # type: ignore[union-attr]
        mean, square, weight = state["exp_avg"], state["exp_avg_sq"], state.get("master", parameter)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = math.sqrt(1 - beta2 ** state["step"])
        root = square.sqrt().div_(scale).add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, root, value=-group["lr"] / (1 - beta1 ** state["step"]))
        if is_half:
            parameter.copy_(weight)
