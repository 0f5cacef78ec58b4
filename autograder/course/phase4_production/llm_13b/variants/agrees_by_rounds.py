"""Right: all layouts are tried; places agree on a checkpoint round by round; tokens are written into one tensor.

`plan` chooses a layout for a cluster and says what the training will take (Kaplan et al. 2020 count 6ND operations for
N parameters and D tokens). `train` carries out any such plan: on 32 GPUs with tensor, pipeline and data parallelism and
sharded optimizer state, or a small sibling of the same layers on four processes of a laptop.
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from labkit.exercises import (  # isort: skip  # your own
    activation_checkpointing, checkpointing, fault_tolerance, parallel_3d, zero,
)  # fmt: skip
from labkit.course.phase4_production.autotune.given import LayoutSpace
from labkit.course.phase4_production.llm_13b import given
from labkit.course.phase4_production.llm_13b.given import Forecast, Report, TrainingPlan
from labkit.hardware import Topology
from labkit.predict import Prediction, Transformer, predict

__all__ = ["MeshCheckpointer", "build", "forecast", "generate", "plan", "train"]


def plan(
    model: Transformer, cluster: Topology, batch: int | None = None, tokens: float = 25e9, **options: Any
) -> TrainingPlan:
    """Return the plan to train `model` with `tokens` tokens on all GPUs of `cluster`: the fastest that fits.

    batch: sequences in a step, of all GPUs; by default 16 for each. options: other fields of `TrainingPlan`. Raises
    ValueError for bad arguments, and if no layout fits.
    """
    batch = given.check_plan(model, cluster, batch, tokens)

    best: Prediction | None = None
    for layout in LayoutSpace(model, cluster, batch).all():
        trained = given.as_trained(layout)
        step = None if trained is None else predict(model, trained, cluster)
        if step is not None and step.surely_fits and (best is None or step.step_seconds < best.step_seconds):
            best = step
    if best is None:
        raise ValueError(f"no layout of {model.name} fits into the memory of a GPU")
    layout, steps, step = best.plan, ceil(tokens / (batch * model.sequence)), best
    return TrainingPlan(model, layout, steps, forecast(step, steps), **options)


def forecast(step: Prediction, steps: int) -> Forecast:
    """Return what a training of `steps` steps will take, failures included; `step` predicts one of them.

    A checkpoint has 14 bytes for each parameter: a weight in 16 bits, and in 32 bits its copy and two moments. Each
    node writes an equal share. A node reads, for each of its GPUs, all weights of its place, and its shard of the rest.
    """
    layout, cluster = step.plan, step.cluster
    parameters, gpus = step.model.parameters, cluster.world_size
    saving = cluster.storage.write_seconds(14 * parameters / cluster.nnodes)
    place, shard = 2 * parameters / (layout.tensor * layout.pipeline), 12 * parameters / gpus
    recovery = given.RESTART_SECONDS + cluster.storage.read_seconds(cluster.nproc_per_node * (place + shard))
    every = fault_tolerance.young_daly_interval(saving, given.FAILURE_SECONDS, gpus).daly
    share = fault_tolerance.goodput(every, saving, recovery, given.FAILURE_SECONDS, gpus)
    days = steps * step.step_seconds / share / 86_400
    return Forecast(step.step_seconds, step.device_bytes.high / 1e9, saving, recovery, every, share, days)


def build(plan: TrainingPlan) -> Any:
    """Return exercise 17's trainer for the plan, on all ranks of the job.

    With ZeRO 1 the optimizer shards its state, and averages the gradients; with ZeRO 0 exercise 11 does. `plan.dtype`
    is that of the weights. With recomputation "full" each block is computed again in the backward pass.
    """
    layout = plan.layout
    mesh = parallel_3d.build_mesh(layout.data, layout.pipeline, layout.tensor)

    def make_optimizer(parameters: Any, group: Any) -> Any:
        if layout.zero:
            return zero.ZeroOptimizer(parameters, given.MasterAdamW, layout.zero, group, lr=plan.learning_rate)
        return given.MasterAdamW(parameters, lr=plan.learning_rate)

    options: dict[str, Any] = {"data_parallel": "optimizer" if layout.zero else "ddp"}
    if layout.recompute == "full":
        options["wrap"] = partial(given.Recomputed, checkpoint=activation_checkpointing.checkpoint)
    return parallel_3d.Parallel3DTrainer(
        plan.config, mesh, make_optimizer, plan.microbatches, seed=plan.seed, dtype=plan.dtype, **options
    )


class MeshCheckpointer(given.MeshCheckpoints):
    """MeshCheckpointer(checkpoint_dir, trainer): checkpoints of a model whose parts are on a mesh.

    Each place of the model, `pp1_tp0`, has a folder of its own, and one of exercise 20's checkpointers, for the ranks
    of its data-parallel group. A crash can leave a step in some of these folders only.
    """

    checkpointer_type = checkpointing.DistributedCheckpointer

    def save(self, step: int) -> None:
        """Save the state after `step` steps. All ranks call this."""
        self.checkpointer.save_checkpoint(step, self.components)

    def load(self) -> int:
        """Load the newest checkpoint that all places have and can load; return its step, 0 if there is none.

        Raises `CheckpointError` on all ranks if there are some, but none can be loaded.
        """
        bad: set[str] = set()
        while True:
            here = set(given.checkpoint_folders(self.checkpointer.storage)) - bad
            common = set.intersection(*(set(one) for one in given.exchange(sorted(here), None)))
            if not common:
                break
            folder, problem = max(common), ""
            try:
                self.checkpointer.load_first(self.components, lambda _, name=folder: [name])
            except checkpointing.CheckpointError as error:
                problem = str(error)
            if not any(given.exchange(problem, None)):
                return int(folder.split("_")[1].split(".")[0])
            bad.add(folder)
        if bad:
            raise checkpointing.CheckpointError(f"none of {', '.join(sorted(bad))} can be loaded by all places")
        return 0


def train(plan: TrainingPlan) -> Report:
    """Train as planned, from the latest checkpoint on, on all ranks of the job. Returns what this rank reports.

    Step s, from 0, has the rate `plan.learning_rate_at(s)`, and `given.tokens_of_step(plan, s)`, (batch, sequence + 1),
    of which each data-parallel rank takes an equal part in their order. A checkpoint follows each
    `plan.checkpoint_every` steps. The end is `report.finish(trainer, plan.held_out)`.
    """
    trainer, report = build(plan), Report()
    mesh = trainer.mesh
    checkpoints = MeshCheckpointer(plan.checkpoint_dir, trainer) if plan.checkpoint_dir else None
    report.first_step = checkpoints.load() if checkpoints else 0
    for step in range(report.first_step, plan.steps):
        for group in trainer.optimizer.param_groups:
            group["lr"] = plan.learning_rate_at(step)
        mine = given.tokens_of_step(plan, step).chunk(mesh.sizes.dp)[mesh.coordinates().dp]
        report.begin_step()
        loss = trainer.train_step(mine[:, :-1], mine[:, 1:])
        report.end_step(step, loss)
        if checkpoints and plan.checkpoint_every and (step + 1) % plan.checkpoint_every == 0:
            checkpoints.save(step + 1)
    return report.finish(trainer, plan.held_out)


@torch.no_grad()
def generate(model: nn.Module, prompt: Tensor, count: int, context: int, generator: torch.Generator) -> Tensor:
    """Return the prompt, (length,), and `count` tokens after it, each drawn by its probability: int64.

    model: whole, (batch, length) to logits (batch, length, vocab). It sees the last `context` tokens.
    """
    length = len(prompt)
    tokens = torch.empty(length + count, dtype=torch.int64)
    tokens[:length] = prompt
    for place in range(length, length + count):
        logits = model(tokens[None, max(0, place - context) : place])[0, -1].float()
        tokens[place] = torch.multinomial(torch.softmax(logits, 0), 1, generator=generator)[0]
    return tokens
