"""Numbers of a training run that change with the cluster: those that depend on the global batch, bucket sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit.course.number_arguments import require_integer, require_positive

BUCKET_SIZES = tuple(0.25 * 2.0**power for power in range(13))
"""Sizes of gradient buckets to choose from: 0.25 to 1,024 MB."""


@dataclass(frozen=True)
class Recipe:
    """A training run that is known to converge. Raises `ValueError` for a field that is out of range."""

    batch_size: int
    """Samples per step, of all GPUs together."""
    learning_rate: float
    """Rate after the warm-up, which raises it linearly from 0."""
    steps: int
    warmup_steps: int = 0
    optimizer: Literal["sgd", "adam"] = "sgd"

    def __post_init__(self) -> None:
        require_integer("batch_size", self.batch_size, at_least=1)
        require_positive("learning_rate", self.learning_rate)
        require_integer("steps", self.steps, at_least=1)
        require_integer("warmup_steps", self.warmup_steps, at_least=0)
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"optimizer must be 'sgd' or 'adam', got {self.optimizer!r}")
