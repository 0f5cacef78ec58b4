"""The factor of the loss in mixed precision: its settings, range and checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.course.arguments import integer, number, require

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
"""Range of a scale: between them it and its reciprocal are above 0 and finite in float32."""


class LossScale:
    """A scale, and settings as in `torch.amp.GradScaler`; a subclass defines how the scale changes.

    init_scale: from SMALLEST to LARGEST. growth_factor: above 1. backoff_factor: between 0 and 1. growth_interval:
    steps in a row without overflow after which the scale grows. Raises ValueError for other numbers.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        require("init_scale", init_scale, number(at_least=SMALLEST, at_most=LARGEST))
        require("growth_factor", growth_factor, number(above=1))
        require("backoff_factor", backoff_factor, number(above=0, below=1))
        require("growth_interval", growth_interval, integer(at_least=1))
        self._scale = float(init_scale)
        self._steps_without_overflow = 0
        """Consecutive steps without overflow since the scale last changed."""
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval

    def get_scale(self) -> float:
        """Return the scale of the next step."""
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, under the names of torch's GradScaler: each can load the other's."""
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._steps_without_overflow,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises ValueError if a part of it is missing or cannot be used."""
        if missing := self.state_dict().keys() - state.keys():
            raise ValueError(f"state must be a scaler's state_dict, got one without {', '.join(sorted(missing))}")
        *settings, steps = (state[name] for name in self.state_dict())
        vars(self).update(vars(LossScale(*settings)), _steps_without_overflow=steps)


def check_scaled_gradients(parameters: Sequence[Tensor]) -> None:
    """Raise ValueError if there is no parameter, or a gradient in float16, where unscaled values may be too small."""
    if not parameters:
        raise ValueError("parameters must be one or more, got none")
    if any(parameter.grad is not None and parameter.grad.dtype == torch.float16 for parameter in parameters):
        raise ValueError("parameters must not have gradients in torch.float16: copy them to float32 first")
