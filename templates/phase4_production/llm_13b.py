"""A language model with 13 billion parameters: planned, trained, checkpointed and resumed with your own modules.

`plan` chooses a layout for a cluster and says what the training will take (Kaplan et al. 2020 count 6ND operations for
N parameters and D tokens). `train` carries out any such plan: on 32 GPUs with tensor, pipeline and data parallelism and
sharded optimizer state, or a small sibling of the same layers on four processes of a laptop.
"""

from __future__ import annotations

import sys
from functools import partial
from math import ceil, inf
from typing import Any

import torch
from torch import Tensor, nn

from labkit.exercises import (  # isort: skip  # your own
    activation_checkpointing, autotune, checkpointing, fault_tolerance, monitoring, parallel_3d, zero,
)  # fmt: skip
from labkit.course.phase4_production.autotune.given import Measurement
from labkit.course.phase4_production.llm_13b import given
from labkit.course.phase4_production.llm_13b.given import Forecast, Report, TrainingPlan
from labkit.hardware import Topology
from labkit.predict import Plan, Prediction, Transformer, predict

__all__ = ["MeshCheckpointer", "build", "forecast", "generate", "plan", "train"]


def plan(
    model: Transformer, cluster: Topology, batch: int | None = None, tokens: float = 25e9, **options: Any
) -> TrainingPlan:
    """Return the plan to train `model` with `tokens` tokens on all GPUs of `cluster`: the fastest that fits.

    batch: sequences in a step, of all GPUs; by default 16 for each. options: other fields of `TrainingPlan`. Raises
    ValueError for bad arguments, and if no layout fits.
    """
    batch = given.check_plan(model, cluster, batch, tokens)

    # TODO 1. Exercise 24's `search_layout(model, cluster, batch, measure)` does not know what your trainer can do:
    # `given.as_trained(layout)` does, None: nothing. `predict(model, layout, cluster)` has `step_seconds`, and the
    # memory up to `device_bytes.high`. The plan is as trained, too. How many steps read all tokens?
    # YOUR CODE HERE
    raise NotImplementedError()
    return TrainingPlan(model, layout, steps, forecast(step, steps), **options)


def forecast(step: Prediction, steps: int) -> Forecast:
    """Return what a training of `steps` steps will take, failures included; `step` predicts one of them.

    A checkpoint has 14 bytes for each parameter: a weight in 16 bits, and in 32 bits its copy and two moments. Each
    node writes an equal share. A node reads, for each of its GPUs, all weights of its place, and its shard of the rest.
    """
    layout, cluster = step.plan, step.cluster
    # This belongs to TODO 1, too. `cluster.storage.write_seconds(nbytes)`, `.read_seconds(nbytes)`, of one node; until
    # reading begins, `given.RESTART_SECONDS`. Exercise 21 has the interval (Daly's) and the goodput of `world_size`
    # GPUs that fail every `given.FAILURE_SECONDS` on average.
    # YOUR CODE HERE
    raise NotImplementedError()
    return Forecast(step.step_seconds, step.device_bytes.high / 1e9, saving, recovery, every, share, days)


def build(plan: TrainingPlan) -> Any:
    """Return exercise 17's trainer for the plan, on all ranks of the job.

    With ZeRO 1 the optimizer shards its state, and averages the gradients; with ZeRO 0 exercise 11 does. `plan.dtype`
    is that of the weights. With recomputation "full" each block is computed again in the backward pass.
    """
    layout = plan.layout
    # TODO 2. A mesh; `make_optimizer(parameters, group)`, with `given.MasterAdamW` and `plan.learning_rate`, in
    # exercise 15's `ZeroOptimizer` or by itself; `wrap(block)`, with `given.Recomputed` and exercise 07's `checkpoint`.
    # YOUR CODE HERE
    raise NotImplementedError()


class MeshCheckpointer(given.MeshCheckpoints):
    """MeshCheckpointer(checkpoint_dir, trainer): checkpoints of a model whose parts are on a mesh.

    Each place of the model, `pp1_tp0`, has a folder of its own, and one of exercise 20's checkpointers, for the ranks
    of its data-parallel group. A crash can leave a step in some of these folders only.
    """

    checkpointer_type = checkpointing.DistributedCheckpointer

    # TODO 3. `self.checkpointer`, `self.components`. Its `load_first(components, order)` loads the first of the folders
    # that `order(storage)` returns; None: there is none; it raises `CheckpointError` if none can be loaded.
    # `given.checkpoint_folders(self.checkpointer.storage)` has the names of this place's, `given.exchange(value, None)`
    # the values of all ranks of the job. A folder that one place cannot load is of no use to the others.
    def save(self, step: int) -> None:
        """Save the state after `step` steps. All ranks call this."""
        # YOUR CODE HERE
        raise NotImplementedError()

    def load(self) -> int:
        """Load the newest checkpoint that all places have and can load; return its step, 0 if there is none.

        Raises `CheckpointError` on all ranks if there are some, but none can be loaded.
        """
        # YOUR CODE HERE
        raise NotImplementedError()


def train(plan: TrainingPlan) -> Report:
    """Train as planned, from the latest checkpoint on, on all ranks of the job. Returns what this rank reports.

    Step s, from 0, has the rate `plan.learning_rate_at(s)`, and `given.tokens_of_step(plan, s)`, (batch, sequence + 1),
    of which each data-parallel rank takes an equal part in their order. A checkpoint follows each
    `plan.checkpoint_every` steps. The end is `report.finish(trainer, plan.held_out)`.
    """
    trainer = build(plan)
    report = Report.of(plan, trainer, monitoring.DistributedTrainingMonitor)
    # TODO 4. Between `report.begin_step()` and `report.end_step(step, loss)` is only `trainer.train_step(inputs,
    # targets)`: which of a window's tokens are inputs, and which targets? `trainer.optimizer.param_groups` have "lr".
    # YOUR CODE HERE
    raise NotImplementedError()
    return report.finish(trainer, plan.held_out)


@torch.no_grad()
def generate(model: nn.Module, prompt: Tensor, count: int, context: int, generator: torch.Generator) -> Tensor:
    """Return the prompt, (length,), and `count` tokens after it, each drawn by its probability: int64.

    model: whole, (batch, length) to logits (batch, length, vocab). It sees the last `context` tokens.
    """
    tokens = prompt.long()
    # This belongs to TODO 4, too. `torch.multinomial(probabilities, 1, generator=generator)` draws one.
    # YOUR CODE HERE
    raise NotImplementedError()
    return tokens


if __name__ == "__main__":
    given.main(sys.modules[__name__])
