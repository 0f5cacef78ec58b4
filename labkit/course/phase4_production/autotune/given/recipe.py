"""Numbers of a training run that change with the cluster: those that depend on the global batch, bucket sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit.course.arguments import integer, one_of, positive, require

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
        require("batch_size", self.batch_size, integer(at_least=1))
        require("learning_rate", self.learning_rate, positive)
        require("steps", self.steps, integer(at_least=1))
        require("warmup_steps", self.warmup_steps, integer(at_least=0))
        require("optimizer", self.optimizer, one_of("sgd", "adam"))
