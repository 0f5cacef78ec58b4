"""What a whole plan takes, from runs of a few of its layers and microbatches.

A step of L layers and m microbatches takes a + b L + c m + d L m seconds: all stages compute equal layers, and a
pipeline of p stages takes m + p - 1 slots. Memory is e + f L bytes, as long as a pipeline has its p microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.clusters import Run
from labkit.parallel.llm_13b.plans import TrainingPlan, with_layers


@dataclass(frozen=True)
class Extended:
    """A step of the whole plan."""

    seconds: float
    nbytes: float
    """Of the fullest rank."""
    tokens_per_second: float


def slices(plan: TrainingPlan, **changes: Any) -> list[TrainingPlan]:
    """Return four plans of one step: p and 2p layers, p and 2p microbatches, for a pipeline of p stages.

    changes: of their fields. Raises ValueError for layers that p does not divide.
    """
    stages = plan.layout.pipeline
    if plan.model.layers % stages:
        raise ValueError(f"layers must be a multiple of {stages} stages, got {plan.model.layers}")
    cells = [(layers, microbatches) for layers in (stages, 2 * stages) for microbatches in (stages, 2 * stages)]
    return [with_layers(plan, *cell, **changes) for cell in cells]


def measured(plans: list[TrainingPlan]) -> list[tuple[float, int]]:
    """On a rank of a fake job: train by each of the plans; return seconds of its last step, and most bytes."""
    import torch.distributed as dist

    import labkit
    from labkit.exercises import llm_13b

    dist.init_process_group("nccl")
    found = []
    for plan in plans:
        labkit.reset_peak_memory_stats()
        report = llm_13b.train(plan)
        found.append((report.step_seconds[-1], report.peak_bytes))
        del report
    return found


def extended(plan: TrainingPlan, run: Run) -> Extended:
    """Return what the whole plan takes, by a run of `measured` with its `slices`: the slowest and the fullest rank."""
    stages = plan.layout.pipeline
    seconds = [max(found[place][0] for found in run.values) for place in range(4)]
    nbytes = [max(found[place][1] for found in run.values) for place in range(4)]
    layers, slots = (plan.model.layers - stages) / stages, (plan.microbatches - stages) / stages
    few, many = (seconds[at] + slots * (seconds[at + 1] - seconds[at]) for at in (0, 2))
    whole = few + layers * (many - few)
    held = nbytes[1] + layers * (nbytes[3] - nbytes[1])
    return Extended(whole, held, plan.layout.batch * plan.model.sequence / whole)
