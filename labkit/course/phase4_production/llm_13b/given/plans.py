"""Plans of a training: model, cluster, layout and forecast: plain data that every rank gets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkit.course.arguments import Rule, instance_of, integer, positive, require
from labkit.course.phase4_production.monitoring.given.metrics import Metrics
from labkit.hardware import Topology
from labkit.models.gpt import GPTConfig
from labkit.predict import Plan, Transformer
from labkit.predict.running import FAILURES_PER_GPU_HOUR

SAMPLES_PER_GPU = 16
"""Sequences of a step for each GPU, unless the batch is given: with 2,048 tokens on 32 GPUs a million tokens."""
RESTART_SECONDS = 120.0
"""Assumed time from a failure until all ranks have joined again. An agent sees a dead process within a second; starting
Python, torch and NCCL on all nodes takes a minute or two."""
FAILURE_SECONDS = 3600 / FAILURES_PER_GPU_HOUR
"""Mean time between failures of one GPU, with its share of everything else (Llama 3: 419 in 54 days on 16,384)."""
_MODEL = Rule(
    "be a causal Transformer with tied embeddings",
    lambda value: isinstance(value, Transformer) and value.tied and value.causal,
)


@dataclass(frozen=True)
class Forecast:
    """Forecast of a plan's time and memory."""

    step_seconds: float
    memory_gb: float
    """Memory of the fullest GPU, in 1e9 bytes, up to what torch's allocator may keep."""
    checkpoint_seconds: float
    """Time to write a checkpoint."""
    recovery_seconds: float
    """Time from a failure until the ranks train again."""
    checkpoint_every_seconds: float
    """Training time between two checkpoints with which the job makes most progress."""
    goodput: float
    """Share of the time that is lasting progress."""
    days: float
    """Length of the whole training, failures included."""


@dataclass(frozen=True)
class TrainingPlan:
    """A training of a GPT with tied embeddings on a cluster. `plan` makes one; `train` carries it out."""

    model: Transformer
    layout: Plan
    """Ranks of data, tensor and pipeline, microbatch, ZeRO 0 or 1, recomputation "none" or "full", bf16 or fp32."""
    steps: int
    forecast: Forecast | None = None
    learning_rate: float = 6e-4
    warmup_steps: int = 100
    checkpoint_dir: str | None = None
    checkpoint_every: int = 0
    """Steps between two checkpoints; 0: none."""
    held_out: int = 0
    """Windows of held-out text to test the model with at the end; 0: the model stays in its parts."""
    train_bytes: int | None = None
    """Text to train on, from the beginning; None: all."""
    seed: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    """Where a monitor writes the metrics of each step; without a destination there is none."""

    @property
    def config(self) -> GPTConfig:
        """The model's sizes as `labkit.models` has them."""
        model = self.model
        return GPTConfig(model.layers, model.heads, model.width, model.vocab, model.sequence)

    @property
    def microbatches(self) -> int:
        """Number of microbatches of a data-parallel rank in a step."""
        return self.layout.batch // (self.layout.data * self.layout.microbatch)

    @property
    def dtype(self) -> torch.dtype | None:
        """dtype of weights, gradients and messages; None: torch's default."""
        return torch.bfloat16 if self.layout.precision == "bf16" else None

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0: up on a line, then down on a cosine to a tenth."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def check_plan(model: Any, cluster: Any, batch: Any, tokens: Any) -> int:
    """Raise `ValueError` naming a wrong argument of `plan`; return the batch, by default 16 sequences for each GPU."""
    require("model", model, _MODEL)
    require("cluster", cluster, instance_of(Topology, "a Topology"))
    require("tokens", tokens, positive)
    if batch is None:
        return SAMPLES_PER_GPU * int(cluster.world_size)
    require("batch", batch, integer(at_least=1))
    return int(batch)


def as_trained(layout: Plan) -> Any:
    """Return the layout as exercise 17's trainer runs it, None if it cannot: plain torch, whole norms on each
    tensor-parallel rank, gradients averaged after the last backward."""
    if layout.zero > 1 or layout.recompute == "selective":
        return None
    return replace(layout, sequence_parallel=False, overlap=False, fusion="none")


def with_layers(plan: TrainingPlan, layers: int, microbatches: int, **changes: Any) -> TrainingPlan:
    """Return the plan with fewer layers and microbatches, one step: a run that shows the cost of all of them."""
    layout = replace(plan.layout, batch=microbatches * plan.layout.microbatch * plan.layout.data)
    model = replace(plan.model, layers=layers)
    return replace(plan, model=model, layout=layout, **{"steps": 1, **changes})
