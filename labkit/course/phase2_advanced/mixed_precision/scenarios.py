"""Exercise 06's scaler and masters on a rank, and its steps on one weight, for its checks.

history(settings, interval, overflows, ...)       the scale after each step
unscaled(scale, gradients, ...)                   gradients over the scale
mastered(weights, frozen, gradients, ...)         updates of weights of several dtypes
one_weight(weight, batches, ...)                  training of one weight, which can be traced by hand
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def history(settings: list[float], interval: int, overflows: list[bool], restored: int = 0) -> list[float]:
    """On a rank: return the scale after each step. After `restored` steps a new scaler continues from the old state."""
    from labkit.exercises import mixed_precision

    scaler = mixed_precision.DynamicLossScaler(*settings, interval)
    scales = []
    for number, overflow in enumerate(overflows):
        if number and number == restored:
            state, scaler = scaler.state_dict(), mixed_precision.DynamicLossScaler()
            scaler.load_state_dict(state)
        scaler.update(overflow)
        scales.append(scaler.get_scale())
    return scales


def unscaled(scale: float, gradients: list[Any], group: Any = None, mark: Any = None) -> Any:
    """On a rank: divide these gradients by the scale (None: a parameter without gradient); return the result and the
    gradients. `mark` is called before."""
    from labkit.exercises import mixed_precision

    parameters = []
    for gradient in gradients:
        like = torch.zeros(2) if gradient is None else torch.zeros_like(gradient)
        parameters.append(torch.nn.Parameter(like))
        parameters[-1].grad = gradient
    scaler = mixed_precision.DynamicLossScaler(scale)
    if mark is not None:
        mark()
    said = scaler.unscale_(parameters, group)
    return said, [parameter.grad for parameter in parameters]


def mastered(
    weights: list[Tensor],
    frozen: int,
    gradients: list[list[Any]],
    optimizer: str,
    options: dict[str, Any],
    rates: list[float],
) -> dict[str, Any]:
    """On a rank: update these weights, of which the one number `frozen` is not trained, by the gradients of each step.

    optimizer: a class of `torch.optim`. rates: learning rates of equal parts of the weights, a parameter group each.
    """
    from labkit.exercises import mixed_precision

    model = [torch.nn.Parameter(weight, number != frozen) for number, weight in enumerate(weights)]
    size = len(model) // len(rates)
    groups = [{"params": model[size * n : size * (n + 1)], "lr": rate} for n, rate in enumerate(rates)]
    inner = getattr(torch.optim, optimizer)(groups, **options)
    masters = mixed_precision.MasterWeights(inner)
    for step in gradients:
        for parameter, gradient in zip(model, step, strict=True):
            parameter.grad = gradient
        masters.take_gradients()
        masters.step()
        masters.zero_grad()
    held = [parameter for entry in inner.param_groups for parameter in entry["params"]]
    states = [value for state in inner.state.values() for value in state.values()]
    return {
        "weights": [parameter.detach() for parameter in model],
        "held": [parameter.detach() for parameter in held],
        "own": [any(parameter is one for one in model) for parameter in held],
        "kept": [str(value.dtype) for value in states if getattr(value, "ndim", 0)],
    }


def one_weight(
    weight: float,
    batches: list[Tensor],
    dtype: str = "float16",
    scale: float = 8.0,
    interval: int = 2000,
    factor: float = 1.0,
    max_norm: Any = None,
    group: Any = None,
) -> dict[str, list[Any]]:
    """On a rank: train one weight in `dtype`; the loss is the mean of its products with the samples. Return the state
    before the first step and after each.

    batches: (samples,) each. scale: 0 for no scaler. factor: factor of the loss, and inverse of the learning rate.
    """
    from labkit.exercises import mixed_precision

    low = getattr(torch, dtype)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    model.to(low)
    inner = torch.optim.SGD(model.parameters(), lr=1 / factor, momentum=0.5)
    optimizer = mixed_precision.MasterWeights(inner)
    scaler = mixed_precision.DynamicLossScaler(scale, growth_interval=interval) if scale else None
    names = ("weights", "masters", "momentum", "scale", "stepped", "losses")
    found: dict[str, list[Any]] = {name: [] for name in names}

    def record() -> None:
        found["weights"].append(model.weight.item())
        found["masters"].append(inner.param_groups[0]["params"][0].item())
        found["momentum"].append(float(sum(state["momentum_buffer"] for state in inner.state.values())))
        found["scale"].append(scaler.get_scale() if scaler else scale)

    record()
    for inputs in batches:
        step = mixed_precision.autocast_step(
            model,
            optimizer,
            lambda outputs, _: outputs.float().mean() * factor,
            (inputs[:, None], inputs),
            scaler,
            dtype=low,
            max_norm=max_norm,
            group=group,
        )
        found["stepped"].append(step.stepped)
        found["losses"].append(step.loss.item())
        record()
    return found
