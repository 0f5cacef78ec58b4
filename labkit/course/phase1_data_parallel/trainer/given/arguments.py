"""Arguments of a data-parallel trainer, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.course.arguments import Rule, number, one_of, positive, require, trained_module

_PAIR = Rule(
    "be a pair of tensors, inputs and targets",
    lambda value: (
        isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(item, Tensor) for item in value)
    ),
)


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `ValueError` unless `value`, the argument called `name`, is one of `choices`."""
    require(name, value, one_of(*choices))


def require_trainable(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise `ValueError` unless `model` has a trained parameter, all of them are real and on one device, and
    `optimizer` holds no others."""
    require("model", model, trained_module)
    parameters = list(model.parameters())
    if odd := [parameter.dtype for parameter in parameters if parameter.is_complex()]:
        raise ValueError(f"model must have real parameters, got {odd[0]}")
    if len(devices := {str(parameter.device) for parameter in parameters}) > 1:
        raise ValueError(f"model must be on one device, got {', '.join(sorted(devices))}")
    require_parameters_of(parameters, optimizer)


def require_parameters_of(model: Sequence[Tensor], optimizer: Optimizer) -> None:
    """Raise `ValueError` if `optimizer` holds others than these, the parameters of a model."""
    known = {id(parameter) for parameter in model}
    if foreign := sum(id(p) not in known for entry in optimizer.param_groups for p in entry["params"]):
        raise ValueError(f"optimizer must hold parameters of model only, got {foreign} others")


def inputs_and_targets(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the pair of tensors in `batch`. Raises `ValueError` unless both have the same first dimension."""
    require("batch", batch, _PAIR)
    inputs, targets = batch
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets)):
        shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"batch must have as many inputs as targets, along the first dimension, got {shapes}")
    return inputs, targets


def require_schedule(global_batch_size: int, base_batch_size: int, step: int, warmup_steps: int) -> None:
    """Raise `ValueError` when a batch size is not above 0, or a number of steps is below 0."""
    require("global_batch_size", global_batch_size, positive)
    require("base_batch_size", base_batch_size, positive)
    require("step", step, number(at_least=0))
    require("warmup_steps", warmup_steps, number(at_least=0))
