"""An optimizer whose state is in host memory, where it steps, too: ZeRO-Offload (Ren et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from labkit.clusters.device import to_device, to_host
from labkit.course.phase3_multi_node.zero.given.optimizer_state import group_options, no_grad_loss


class HostOptimizer(Optimizer):
    """Steps copies of the parameters in host memory with `optimizer_class`; its state never leaves it.

    A step copies each parameter with a gradient, and the gradient, to the host, and the parameter back. Use it for
    shards on a GPU, in the place of an optimizer's class:

        ZeroOptimizer(parameters, functools.partial(HostOptimizer, optimizer_class=AdamW), stage=2)
    """

    def __init__(self, params: Iterable[Any], optimizer_class: Callable[..., Optimizer], **options: Any) -> None:
        own = optimizer_class(params, **options)
        super().__init__(own.param_groups, own.defaults)
        self._copies = {p: nn.Parameter(torch.empty(0)) for group in self.param_groups for p in group["params"]}
        groups = [
            {**group_options(group), "params": [self._copies[p] for p in group["params"]]}
            for group in self.param_groups
        ]
        self._inner = optimizer_class(groups, **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each parameter that has a gradient."""
        loss = no_grad_loss(closure)
        for mine, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update(group_options(mine))  # learning rates are scheduled here
        stepped = {p: copy for p, copy in self._copies.items() if p.grad is not None}
        for parameter, copy in stepped.items():
            copy.data, copy.grad = to_host(parameter), to_host(parameter.grad)
            self._inner.state[copy] = self.state[parameter]  # one dictionary, which a checkpoint may have replaced
        self._inner.step()
        for parameter, copy in stepped.items():
            parameter.copy_(to_device(copy.detach(), parameter.device))
            copy.data, copy.grad = torch.empty(0, dtype=copy.dtype), None
        return loss
