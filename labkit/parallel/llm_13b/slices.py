"""What a whole plan takes, from runs of a few of its layers and microbatches.

A step of L layers and m microbatches takes a + b L + c m + d L m seconds: all stages compute equal layers, and a
pipeline of p stages takes m + p - 1 slots. Memory, and the time to save and load, are e + f L, as long as a pipeline
has its p microbatches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit.parallel.llm_13b.plans import TrainingPlan, with_layers
from labkit.parallel.llm_13b.text import tokens_of_step


@dataclass(frozen=True)
class Extended:
    """A step of the whole plan, by its slowest and its fullest rank."""

    seconds: float
    nbytes: float
    tokens_per_second: float
    """Of all GPUs."""
    save_seconds: float
    load_seconds: float


def slices(plan: TrainingPlan, **changes: Any) -> list[TrainingPlan]:
    """Return four plans of one step: p and 2p layers, p and 2p microbatches, for a pipeline of p stages.

    changes: of their fields. Raises ValueError for layers that p does not divide.
    """
    stages = plan.layout.pipeline
    if plan.model.layers % stages:
        raise ValueError(f"layers must be a multiple of {stages} stages, got {plan.model.layers}")
    cells = [(layers, microbatches) for layers in (stages, 2 * stages) for microbatches in (stages, 2 * stages)]
    return [with_layers(plan, *cell, **changes) for cell in cells]


def measured(plans: Sequence[TrainingPlan], folder: str | None = None) -> list[tuple[float, float, float, float]]:
    """On a rank of a fake job: for each plan, seconds of a step, and most bytes.

    If a folder is given, also seconds to save and load on the nodes' storage; of every second plan, since the number of
    microbatches changes nothing there.
    """
    import torch.distributed as dist

    from labkit.clusters.device import max_memory_allocated, reset_peak_memory_stats
    from labkit.exercises import llm_13b

    dist.init_process_group("nccl")
    found: list[tuple[float, float, float, float]] = []
    for number, plan in enumerate(plans):
        reset_peak_memory_stats()
        trainer, times = llm_13b.build(plan), []
        tokens = tokens_of_step(plan, 0).chunk(trainer.mesh.sizes.dp)[trainer.mesh.coordinates().dp]
        saves = folder is not None and number % 2
        checkpoints = llm_13b.MeshCheckpointer(str(Path(folder or "") / str(number)), trainer) if saves else None
        actions: list[Any] = [partial(trainer.train_step, tokens[:, :-1], tokens[:, 1:])]
        if checkpoints:
            actions += [partial(checkpoints.save, 1), checkpoints.load]
        nbytes = 0
        for action in actions:
            dist.barrier()
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
            nbytes = nbytes or max_memory_allocated()
        saving, loading = times[1:] or (0.0, 0.0)
        found.append((times[0], float(nbytes), saving, loading))
        del trainer, checkpoints, actions, action
    return found


def extended(plan: TrainingPlan, values: Sequence[Sequence[Sequence[float]]], first: int = 0) -> Extended:
    """Return what the whole plan takes, by what all ranks of `measured` return; its slices begin at number `first`."""
    stages = plan.layout.pipeline
    layers, slots = (plan.model.layers - stages) / stages, (plan.microbatches - stages) / stages

    def of(cell: int, what: int) -> float:
        return max(found[first + cell][what] for found in values)

    few, many = (of(cell, 0) + slots * (of(cell + 1, 0) - of(cell, 0)) for cell in (0, 2))
    seconds = few + layers * (many - few)
    nbytes, save, load = (of(1, what) + layers * (of(3, what) - of(1, what)) for what in (1, 2, 3))
    return Extended(seconds, nbytes, plan.layout.batch * plan.model.sequence / seconds, save, load)
