"""Bytes for each parameter that training with Adam keeps: the parameter, its gradient and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from labkit.predict.plan import Plan


class StateBytes(NamedTuple):
    """Bytes for each parameter."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def saved(self) -> float:
        """Bytes in a checkpoint: all but the gradient."""
        return self.parameters + self.optimizer

    def held(self, stage: int, ranks: int) -> StateBytes:
        """Bytes on each of `ranks` ranks at a stage of ZeRO: optimizer state in shards from 1 on, gradients from 2,
        parameters in 3 (Rajbhandari et al. 2020)."""
        firsts = zip(self, (3, 2, 1), strict=True)
        return StateBytes(*(nbytes / ranks if stage >= first else nbytes for nbytes, first in firsts))


STATE_BYTES: Mapping[str, StateBytes] = MappingProxyType(
    {
        "mixed": StateBytes(2, 2, 12),
        "mixed, fp32 gradients": StateBytes(2, 4, 12),
        "fp32": StateBytes(4, 4, 8),
        "fp32, in buckets": StateBytes(4, 8, 8),
    }
)
"""Bytes of parameter, gradient and Adam's state by precision; docs/guide.md says who trains so. Mixed: 16 bits, and in
the optimizer's state an fp32 copy beside the two moments (Micikevicius et al. 2018, Rajbhandari et al. 2020). In fp32
parameters are their own copy, and products may still be of 16 bits (autocast, FSDP)."""


def state_bytes(plan: Plan) -> StateBytes:
    """Bytes for each parameter under `plan`, without ZeRO. The shards of ZeRO 3 are in fp32, as FSDP keeps them."""
    if plan.value_bytes == 4 or plan.zero == 3:
        return STATE_BYTES["fp32"]
    return STATE_BYTES["mixed, fp32 gradients" if plan.gradients == "fp32" else "mixed"]
