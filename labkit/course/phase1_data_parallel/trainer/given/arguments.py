"""Arguments of a data-parallel trainer, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def require_trainable(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise `ValueError` unless `model` has a trained parameter, all of them are real and on one device, and
    `optimizer` holds no others."""
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ValueError(f"model must have a parameter that is trained, got {type(model).__name__} without one")
    if odd := [parameter.dtype for parameter in parameters if parameter.is_complex()]:
        raise ValueError(f"model must have real parameters, got {odd[0]}")
    if len(devices := {str(parameter.device) for parameter in parameters}) > 1:
        raise ValueError(f"model must be on one device, got {', '.join(sorted(devices))}")
    known = {id(parameter) for parameter in parameters}
    foreign = [p for entry in optimizer.param_groups for p in entry["params"] if id(p) not in known]
    if foreign:
        raise ValueError(f"optimizer must hold parameters of model only, got {len(foreign)} others")


def inputs_and_targets(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the pair of tensors in `batch`. Raises `ValueError` unless both have the same first dimension."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        raise ValueError(f"batch must be a pair of tensors, inputs and targets, got {type(batch).__name__}")
    inputs, targets = batch
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets)):
        shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"batch must have as many inputs as targets, along the first dimension, got {shapes}")
    return inputs, targets


def require_schedule(global_batch_size: int, base_batch_size: int, step: int, warmup_steps: int) -> None:
    """Raise `ValueError` when a batch size is not above 0, or a number of steps is below 0."""
    for name, size in (("global_batch_size", global_batch_size), ("base_batch_size", base_batch_size)):
        if size <= 0:
            raise ValueError(f"{name} must be above 0, got {size}")
    for name, count in (("step", step), ("warmup_steps", warmup_steps)):
        if count < 0:
            raise ValueError(f"{name} must be 0 or more, got {count}")
