"""Mixed precision: compute and send in 16 bits, keep and update weights in float32 (Micikevicius et al. 2018).

float16 has nothing below 2**-24 and nothing above 65504. So the loss is multiplied by a scale before the backward
pass, which lifts all gradients by that factor, and they are divided by it in float32, where small numbers exist. Where
the scale was too large a gradient is infinite: then every rank skips the step, and the scale shrinks. Weights have a
float32 copy, their master: an update below half a thousandth of a 16-bit weight would be rounded away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

__all__ = ["DynamicLossScaler", "MasterWeights", "StepResult", "autocast_step"]

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
"""What a scale may be: above 0 and finite, as is 1 / scale, in float32."""
HALVES = (torch.float16, torch.bfloat16)


class DynamicLossScaler:
    """The factor of the loss: halved after each overflow, doubled when there was none for a while.

    init_scale: the first one. growth_factor: above 1. backoff_factor: between 0 and 1. growth_interval: steps in a row
    without overflow, after which the scale grows. Methods are those of `torch.amp.GradScaler`, and so is the history of
    the scale. Raises ValueError for numbers that cannot be.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if not SMALLEST <= init_scale <= LARGEST:
            raise ValueError(f"init_scale must be above 0 and finite in float32, got {init_scale}")
        if not 1 < growth_factor < math.inf:
            raise ValueError(f"growth_factor must be above 1 and finite, got {growth_factor}")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"backoff_factor must be between 0 and 1, got {backoff_factor}")
        if not (isinstance(growth_interval, int) and growth_interval >= 1):
            raise ValueError(f"growth_interval must be a whole number, 1 or more, got {growth_interval}")
        self._scale, self._steps_without_overflow = float(init_scale), 0
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval

    def get_scale(self) -> float:
        """The scale of the next step, SMALLEST to LARGEST."""
        return self._scale

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale, in float32 at least: in float16 the product would be infinite."""
        return loss.to(torch.promote_types(loss.dtype, torch.float32)) * self._scale

    def unscale_(self, parameters: Iterable[Tensor], group: ProcessGroup | None = None) -> bool:
        """Divide every gradient by the scale, in place, and say whether one was not finite, on any rank of the group.

        parameters: this rank's, one or more, the same on all ranks or not; those without `grad` are passed over.
        One collective of one number, whatever `parameters` are: every rank must call this.
        Raises ValueError, before any message, for gradients in float16: what was lifted would fall back below 2**-24.
        """
        parameters = list(parameters)
        if not parameters:
            raise ValueError("parameters must be one or more, got none")
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if torch.float16 in {gradient.dtype for gradient in gradients}:
            raise ValueError("parameters must not have gradients in torch.float16: copy them to float32 first")

        # a gradient's smallest and largest element are NaN if any of it is; on CPUs that is the cheapest question
        ends = [end.isfinite() for gradient in gradients if gradient.numel() for end in gradient.aminmax()]
        finite = torch.stack([torch.ones((), dtype=torch.bool, device=parameters[0].device), *ends]).all()

        # TODO 1. `finite` says whether all of this rank's gradients are. Divide them. A number that is 1 or 0 goes to
        # all ranks: by which reduction does 1 on any of them become 1 on all? Read it once, at the end: each `.item()`
        # makes the host wait for the GPU.
        ### BEGIN SOLUTION
        found_inf = (~finite).float().reshape(1)
        for gradient in gradients:
            gradient.mul_(1 / self._scale)
        dist.all_reduce(found_inf, ReduceOp.MAX, group)
        return bool(found_inf.item())
        ### END SOLUTION

    def update(self, found_inf: bool) -> None:
        """Choose the scale of the next step, after one in which a gradient was not finite, or none was.

        After an overflow it is backoff_factor times as large, not below SMALLEST. After growth_interval steps in a row
        without one it is growth_factor times as large, unless that is above LARGEST; then counting begins anew.
        """
        # TODO 2. `self._steps_without_overflow` counts. In which two cases does it go back to 0?
        ### BEGIN SOLUTION
        self._steps_without_overflow += 1
        if found_inf:
            self._scale = max(self._scale * self.backoff_factor, SMALLEST)
            self._steps_without_overflow = 0
        elif self._steps_without_overflow >= self.growth_interval:
            grown = self._scale * self.growth_factor
            self._scale = grown if grown <= LARGEST else self._scale
            self._steps_without_overflow = 0
        ### END SOLUTION

    def state_dict(self) -> dict[str, Any]:
        """All that goes into a checkpoint, under the names that torch's GradScaler has: each can load the other's."""
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._steps_without_overflow,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        if missing := self.state_dict().keys() - state.keys():
            raise ValueError(f"state must be a scaler's state_dict, got one without {', '.join(sorted(missing))}")
        *settings, steps = (state[name] for name in self.state_dict())
        vars(self).update(vars(DynamicLossScaler(*settings)), _steps_without_overflow=steps)


class MasterWeights:
    """An optimizer that works on float32 copies, the masters, of the 16-bit weights that it was made for.

    optimizer: made for a model's parameters, before its first step. Afterwards its `param_groups` hold a master in the
    place of each trained parameter in float16 or bfloat16; what it keeps for them, such as Adam's moments, is float32,
    too. Other parameters stay themselves. With Adam that is 2 + 2 + 4 + 4 + 4 bytes for a parameter: weight, gradient,
    master, two moments. Weights of the model that are loaded later are overwritten by the next step.
    Raises ValueError for an optimizer that has taken a step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if optimizer.state:
            raise ValueError(f"optimizer must not have taken a step, got {type(optimizer).__name__} with state")
        self.optimizer = optimizer
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        """Each parameter in 16 bits with its master."""

        # TODO 3. Go through the lists `entry["params"]` of `optimizer.param_groups`. In the place of each trained
        # parameter whose dtype is one of HALVES put a master, an `nn.Parameter`, and note the pair.
        ### BEGIN SOLUTION
        for entry in optimizer.param_groups:
            for place, parameter in enumerate(entry["params"]):
                if parameter.requires_grad and parameter.dtype in HALVES:
                    entry["params"][place] = master = nn.Parameter(parameter.detach().float())
                    self.pairs.append((parameter, master))
        ### END SOLUTION

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer works on: masters, and parameters that need none."""
        return [parameter for entry in self.optimizer.param_groups for parameter in entry["params"]]

    def take_gradients(self) -> None:
        """Give each master its parameter's gradient, in float32. The 16-bit one is freed."""
        for parameter, master in self.pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take the optimizer's step on the masters, and round them into the model's weights."""
        self.optimizer.step()
        for parameter, master in self.pairs:
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Free all gradients, the model's and the masters'."""
        self.optimizer.zero_grad()
        for parameter, _ in self.pairs:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and the masters: the model's weights alone have lost their last digits."""
        return {"optimizer": self.optimizer.state_dict(), "masters": [master.detach() for _, master in self.pairs]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; the model's weights become its masters', rounded."""
        self.optimizer.load_state_dict(state["optimizer"])
        for (parameter, master), saved in zip(self.pairs, state["masters"], strict=True):
            master.copy_(saved)
            parameter.copy_(saved)


@dataclass(frozen=True)
class StepResult:
    """What one step found."""

    loss: Tensor
    """This rank's mean loss, not scaled; NaN when it had no sample. Not read yet: `.item()` waits for the GPU."""
    stepped: bool
    """False, on every rank, when an overflow on one of them made all skip the step."""


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

    model: equal weights on every rank, in float32 or in `dtype`. optimizer: of its parameters; `MasterWeights` where
    these have 16 bits. loss_fn(outputs, targets): the mean over the samples. batch: this rank's inputs and targets; any
    number of samples, or none. scaler: None for bfloat16, whose range is that of float32. dtype: the one to compute in;
    float32 turns autocast off. max_norm: the gradient, unscaled, is clipped to it, all parameters together.

    Gradients travel in their parameters' dtype, in one all-reduce for each dtype; beside it two collectives of one
    number. A skipped step leaves weights, masters and optimizer state alone. Gradients are freed in the end.
    Raises ValueError, before any message, when an argument cannot be used.
    """
    inputs, targets = _checked(model, optimizer, batch, scaler, dtype, max_norm, group)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device, samples = trained[0].device, len(targets)
    updated = optimizer.parameters if isinstance(optimizer, MasterWeights) else trained
    share = _share(samples, device, group)
    loss, found_inf = torch.full((), math.nan, device=device), False
    model.zero_grad()

    # TODO 4. Unless there is no sample here: forward and loss under `torch.autocast(device.type, dtype, enabled=...)`,
    # and the backward pass, outside it, of the scaled loss times `share`. Then, on every rank: `_add_up` the gradients;
    # let masters take them; unscale, which says whether anybody found an overflow; clip; step. Which of these does a
    # skipped step leave out? The scaler hears of each step. Without a scaler nothing is scaled, and nothing skipped.
    ### BEGIN SOLUTION
    if samples:
        with torch.autocast(device.type, dtype, enabled=dtype in HALVES):
            loss = loss_fn(model(inputs), targets)
        scaled = loss if scaler is None else scaler.scale(loss)
        (scaled * share).backward()
    _add_up(trained, group)
    if isinstance(optimizer, MasterWeights):
        optimizer.take_gradients()
    if scaler is not None:
        found_inf = scaler.unscale_(updated, group)
        scaler.update(found_inf)
    if not found_inf:
        if max_norm is not None:
            clip_grad_norm_(updated, max_norm)
        optimizer.step()
    ### END SOLUTION

    optimizer.zero_grad()
    return StepResult(loss.detach(), not found_inf)


def _share(samples: int, device: torch.device, group: ProcessGroup | None) -> Tensor:
    """This rank's part of the samples of all ranks."""
    total = torch.full((1,), float(samples), device=device)
    dist.all_reduce(total, group=group)
    return (samples / total).squeeze()


def _add_up(parameters: Sequence[nn.Parameter], group: ProcessGroup | None) -> None:
    """Replace each gradient by its sum over the group; None stays None where no rank has one.

    One message for each dtype: all gradients in it, and behind them, for each of its parameters, 1 where there is one.
    A sum may overflow where no part did; it does so on every rank.
    """
    for dtype in sorted({parameter.dtype for parameter in parameters}, key=str):
        alike = [parameter for parameter in parameters if parameter.dtype == dtype]
        sizes = [parameter.numel() for parameter in alike]
        flat = torch.zeros(sum(sizes) + len(sizes), dtype=dtype, device=alike[0].device)
        *sums, present = flat.split([*sizes, len(sizes)])
        present.copy_(torch.tensor([parameter.grad is not None for parameter in alike]))
        for parameter, part in zip(alike, sums, strict=True):
            if parameter.grad is not None:
                part.view(parameter.shape).copy_(parameter.grad)
                parameter.grad = None
        dist.all_reduce(flat, group=group)
        for parameter, part, count in zip(alike, sums, present.tolist(), strict=True):
            parameter.grad = part.view(parameter.shape) if count else None


def _checked(
    model: nn.Module,
    optimizer: Optimizer | MasterWeights,
    batch: tuple[Tensor, Tensor],
    scaler: DynamicLossScaler | None,
    dtype: torch.dtype,
    max_norm: float | None,
    group: ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """Inputs and targets, once all arguments are found usable."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
    if dtype not in (*HALVES, torch.float32):
        raise ValueError(f"dtype must be float16, bfloat16 or float32, got {dtype}")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    trained = {id(p): p.dtype for p in model.parameters() if p.requires_grad}
    if not trained:
        raise ValueError(f"model must have a parameter that is trained, got {type(model).__name__} without one")
    inner, pairs = (optimizer.optimizer, optimizer.pairs) if isinstance(optimizer, MasterWeights) else (optimizer, [])
    known = {id(p) for p in model.parameters()} | {id(master) for p, master in pairs if id(p) in trained}
    if foreign := sum(id(p) not in known for entry in inner.param_groups for p in entry["params"]):
        raise ValueError(f"optimizer must hold parameters of model only, got {foreign} others")
    if scaler is not None and torch.float16 in trained.values() and not pairs:
        raise ValueError("optimizer must be MasterWeights for parameters in torch.float16, got one of theirs")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        raise ValueError(f"batch must be a pair of tensors, inputs and targets, got {type(batch).__name__}")
    inputs, targets = batch
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets)):
        shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"batch must have as many inputs as targets, along the first dimension, got {shapes}")
    return inputs, targets
