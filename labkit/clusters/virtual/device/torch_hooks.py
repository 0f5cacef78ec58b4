"""torch hooks that show what a tensor's memory is held for: parameters, gradients, optimizer state.

Registered once per process; each call reaches the account of the rank in whose thread it happens.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from labkit.clusters.virtual.device.memory import GRADIENT, OPTIMIZER, current


@functools.cache
def install_torch_hooks() -> None:
    """Register the hooks for parameters, optimizers and resized storages. Calling it again changes nothing."""
    register_module_parameter_registration_hook(_registered)
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    _call_after(Optimizer, "add_param_group", _optimizes)
    # FSDP frees and reallocates the memory of gathered parameters in this way
    _call_after(torch.UntypedStorage, "resize_", _resized)


def _call_after(owner: type, name: str, then: Any) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        then(self)
        return result

    setattr(owner, name, method)


def _registered(module: Any, name: str, parameter: Any) -> None:
    account = current()
    if account is not None and isinstance(parameter, Tensor):
        account.is_parameter(parameter)


def _optimizes(optimizer: Optimizer) -> None:
    account = current()
    if account is not None:
        for parameter in optimizer.param_groups[-1]["params"]:
            account.is_parameter(parameter)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    account = current()
    if account is not None:
        account.in_optimizer = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                account.is_parameter(parameter)  # its data may have been replaced since the last time
                if parameter.grad is not None:
                    account.is_for(parameter.grad, GRADIENT)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    account = current()
    if account is not None:
        account.in_optimizer = False
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    account.is_for(value, OPTIMIZER)


def _resized(storage: torch.UntypedStorage) -> None:
    account = current()
    if account is not None:
        account.resized(storage)
