"""Mixed precision: compute and send in 16 bits, keep and update weights in float32 (Micikevicius et al. 2018).

float16 has nothing below 2**-24 and nothing above 65504. So the loss is multiplied by a scale, which lifts all
gradients, and these are divided by it in float32. If the scale was too large, a gradient is infinite: then every rank
skips the step, and the scale shrinks. Each 16-bit weight has a float32 copy, its master: in float16 an update below a
quarter of a thousandth of the weight is rounded away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from labkit.course.phase2_advanced.mixed_precision.given.arguments import check_step
from labkit.course.phase2_advanced.mixed_precision.given.gradient_reduction import (
    all_reduce_gradients,
    share_of_samples,
)
from labkit.course.phase2_advanced.mixed_precision.given.loss_scale import (
    LARGEST,
    SMALLEST,
    LossScale,
    check_scaled_gradients,
)
from labkit.course.phase2_advanced.mixed_precision.given.master_weights import HALVES, PairedOptimizer

__all__ = ["DynamicLossScaler", "MasterWeights", "StepResult", "autocast_step"]


class DynamicLossScaler(LossScale):
    """The factor of the loss: smaller after each overflow, larger after `growth_interval` steps in a row without one.

    Its arguments, its methods and the history of the scale are those of `torch.amp.GradScaler`. `self._scale` is the
    factor; it stays between SMALLEST and LARGEST, where it and its reciprocal are above 0 and finite in float32.
    """

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale, in float32 at least: in float16 the product would be infinite."""
        return loss.to(torch.promote_types(loss.dtype, torch.float32)) * self._scale

    def unscale_(self, parameters: Iterable[Tensor], group: ProcessGroup | None = None) -> bool:
        """Divide every gradient by the scale, in place; return whether any, on any rank of the group, was not finite.

        parameters: at least one; ranks may have different ones. Those without `grad` are skipped. One collective of one
        number in any case, so every rank must call this. Raises ValueError, before it, for float16 gradients: small
        ones would fall below 2**-24.
        """
        parameters = list(parameters)
        check_scaled_gradients(parameters)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # a gradient's smallest and largest element are NaN if any of it is: on CPUs the cheapest test
        ends = [end.isfinite() for gradient in gradients if gradient.numel() for end in gradient.aminmax()]
        finite = torch.stack([torch.ones((), dtype=torch.bool, device=parameters[0].device), *ends]).all()

        # TODO 1. `finite` is whether all of this rank's gradients are. Divide them, in place. A number that is 1 or 0
        # goes to all ranks: by which reduction does 1 on any of them become 1 on all? Read it once, at the end: each
        # `.item()` makes the host wait for the GPU.
        # YOUR CODE HERE
        raise NotImplementedError()

    def update(self, found_inf: bool) -> None:
        """Choose the scale of the next step, given whether a gradient of this one was not finite.

        After an overflow it is backoff_factor times as large, but at least SMALLEST. After growth_interval steps in a
        row without one it is growth_factor times as large, unless that is above LARGEST; then counting begins anew.
        """
        # TODO 2. `self._steps_without_overflow` counts. In which two cases does it go back to 0?
        # YOUR CODE HERE
        raise NotImplementedError()


class MasterWeights(PairedOptimizer):
    """An optimizer that works on float32 copies, the masters, of the 16-bit weights that it was made for.

    optimizer: of a model's parameters, before its first step, else ValueError; afterwards its `param_groups` hold a
    master in the place of each trained parameter in 16 bits, and what it keeps for them, such as Adam's moments, is
    float32, too. With Adam that is 2 + 2 + 4 + 4 + 4 bytes for a parameter: weight, gradient, master, two moments.
    `pairs` lists the parameters with their masters. Weights of the model that are loaded later are overwritten by the
    next step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        # TODO 3. Go through the lists `entry["params"]` of `optimizer.param_groups`. In the place of each trained
        # parameter whose dtype is one of HALVES put a master, an `nn.Parameter`, and note both in `self.pairs`. The two
        # methods below go through these pairs.
        # YOUR CODE HERE
        raise NotImplementedError()

    def take_gradients(self) -> None:
        """Give each master its parameter's gradient, in float32, or None. The 16-bit one is freed."""
        # YOUR CODE HERE
        raise NotImplementedError()

    @torch.no_grad()
    def step(self) -> None:
        """Take the optimizer's step on the masters, and round them into the model's weights."""
        # YOUR CODE HERE
        raise NotImplementedError()


@dataclass(frozen=True)
class StepResult:
    """The outcome of one step on one rank."""

    loss: Tensor
    """This rank's mean loss, not scaled; NaN if it has no sample. Still on the device: `.item()` waits for the GPU."""
    stepped: bool
    """False, on every rank, if an overflow on one of them made all skip the step."""


def autocast_step(
    model: nn.Module,
    optimizer: Optimizer | MasterWeights,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    scaler: DynamicLossScaler | None = None,
    *,
    dtype: torch.dtype = torch.float16,
    max_norm: float | None = None,
    group: ProcessGroup | None = None,
) -> StepResult:
    """Train one step in mixed precision with all ranks of `group`, on the mean over the samples of all.

    model: equal weights on every rank, in float32 or in `dtype`. optimizer: of its parameters; `MasterWeights` if these
    have 16 bits. loss_fn(outputs, targets): the mean over the samples. batch: this rank's inputs and targets; any
    number of samples, or none. scaler: None for bfloat16, whose range is that of float32. dtype: the one to compute in;
    float32 turns autocast off. max_norm: maximum norm of the unscaled gradient, all parameters together.

    Gradients travel in their parameters' dtype, in one all-reduce for each dtype; in addition there are two collectives
    of one number. A skipped step leaves weights, masters and optimizer state alone. Gradients are freed at the end.
    Raises ValueError, before any message, for an argument that cannot be used.
    """
    check_step(model, optimizer, batch, dtype, max_norm, group, scaled=scaler is not None)
    masters = optimizer if isinstance(optimizer, MasterWeights) else None
    inputs, targets = batch
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    updated = trained if masters is None else masters.parameters
    device, samples = trained[0].device, len(targets)
    share = share_of_samples(samples, device, group)
    loss, found_inf = torch.full((), math.nan, device=device), False
    model.zero_grad()

    # TODO 4. Unless there is no sample here: forward and loss under `torch.autocast(device.type, dtype, enabled=...)`;
    # outside it, the backward pass of the scaled loss times `share`. Then, on every rank: `all_reduce_gradients` of
    # `trained`; let `masters`, if any, take them; unscale those of `updated`, which the optimizer works on, and set
    # `found_inf`: whether any rank had an overflow; clip `updated`; step. Which of these does a skipped step leave out?
    # Update the scaler after each step, skipped or not. Without a scaler nothing is scaled, and nothing skipped.
    # YOUR CODE HERE
    raise NotImplementedError()

    optimizer.zero_grad()
    return StepResult(loss.detach(), not found_inf)
