"""Time and memory of a whole plan, from runs of a few of its layers and microbatches.

A step of L layers and m microbatches takes a + b L + c m + d L m seconds: all stages compute equal layers, and once a
pipeline is full each microbatch takes as long as the slowest stage. The peak of each part of a step, and the time to
save and load, are e + f L on each rank; the peak of the step is the highest of its parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from labkit.course.phase4_production.llm_13b.given.peaks import PeaksOfStep, blocks_of
from labkit.course.phase4_production.llm_13b.given.plans import TrainingPlan, with_layers
from labkit.course.phase4_production.llm_13b.given.text import tokens_of_step


@dataclass(frozen=True)
class Extended:
    """A step of the whole plan, by its slowest and its fullest rank."""

    seconds: float
    nbytes: float
    tokens_per_second: float
    """Throughput of all GPUs together."""
    save_seconds: float
    load_seconds: float


class Slice(NamedTuple):
    """Measurements of one slice on one rank."""

    seconds: float
    """Time of a step."""
    blocks: int
    """Number of blocks in this rank's stages."""
    peaks: dict[str, int]
    """Bytes of each part of the last step; empty if there was only one step."""
    save_seconds: float
    load_seconds: float


def slices(plan: TrainingPlan, **changes: Any) -> list[TrainingPlan]:
    """Return four plans: L and L + p layers for a pipeline of p stages, each with two numbers of microbatches.

    L is the lowest number of layers with which each stage has a block, and with p more each has one more; at most all.
    There are p + 1 and p + 2 microbatches, at most all: the pipeline is full, and has gradients. Every second plan has
    two steps, and others one: the second step finds the optimizer's state. changes: of the plans' fields.
    """
    stages, most = plan.layout.pipeline, plan.model.layers
    fewest = next(n for n in range(most % stages or stages, most + 1, stages) if n == most or _fills(plan, n))
    many = min(plan.microbatches, stages + 2)
    cells = [(layers, step) for layers in (fewest, fewest + stages) for step in ((max(1, many - 1), 1), (many, 2))]
    return [with_layers(plan, layers, count, **{"steps": steps, **changes}) for layers, (count, steps) in cells]


def _fills(plan: TrainingPlan, layers: int) -> bool:
    """Return whether the last stage has blocks, if stages are cut so that the most expensive one costs least."""
    model, before = plan.model, plan.layout.pipeline - 1
    head = 2 * model.vocab / (24 * model.width + 4 * model.sequence)  # in blocks, as `gpt_layers` has them
    if not before:
        return True
    return min(range(layers + 1), key=lambda last: max(ceil((layers - last) / before), last + head)) > 0


def measured(plans: Sequence[TrainingPlan], folder: str | None = None) -> list[Slice]:
    """On a rank of a fake job: measure each of the plans that `slices` returns.

    If a folder is given, those of two steps are also saved and loaded on the nodes' storage.
    """
    from labkit.exercises import llm_13b

    dist.init_process_group("nccl")
    results: list[Slice] = []
    for number, plan in enumerate(plans):
        trainer = llm_13b.build(plan)
        tokens = tokens_of_step(plan, 0).chunk(trainer.mesh.sizes.dp)[trainer.mesh.coordinates().dp]
        step = partial(trainer.train_step, tokens[:, :-1], tokens[:, 1:])
        seconds, peaks, saving, loading = _seconds(step), dict[str, int](), 0.0, 0.0
        if plan.steps > 1:
            parts = PeaksOfStep(trainer)
            parts.begin()
            step()
            peaks = parts.end()
            del parts
            if folder is not None:
                checkpoints = llm_13b.MeshCheckpointer(str(Path(folder) / str(number)), trainer)
                saving, loading = _seconds(partial(checkpoints.save, 1)), _seconds(checkpoints.load)
                del checkpoints
        results.append(Slice(seconds, blocks_of(trainer), peaks, saving, loading))
        del trainer, step
    return results


def _seconds(action: Callable[[], Any]) -> float:
    """Return the time that an action takes, from when all ranks are ready."""
    dist.barrier()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def extended(plan: TrainingPlan, values: Sequence[Sequence[Any]], first: int = 0) -> Extended:
    """Return time and memory of the whole plan, by what all ranks of `measured` return: slices `first` to `first` + 3.

    Raises ValueError if the trainer's stages do not grow by one block each.
    """
    ranks = [own[first : first + 4] for own in values]
    fewest = slices(plan)[0]
    slots, longer = plan.microbatches - fewest.microbatches, partial(_longer, plan)
    a, b, c, d = (max(cells[cell].seconds for cells in ranks) for cell in range(4))
    seconds = longer(a + slots * (b - a), c + slots * (d - c))
    save, load = (
        max(longer(getattr(few, name), getattr(many, name)) for _, few, _, many in ranks)
        for name in ("save_seconds", "load_seconds")
    )
    nbytes = extended_bytes(plan, [(few, many) for _, few, _, many in ranks])
    return Extended(seconds, nbytes, plan.layout.batch * plan.model.sequence / seconds, save, load)


def extended_bytes(plan: TrainingPlan, values: Sequence[Sequence[Any]]) -> float:
    """Return the peak of the whole plan's fullest rank, by what all ranks return for `slices(plan)[1::2]`.

    Raises ValueError as `extended` does.
    """
    if not _growth(plan):
        return float(max(max(few.peaks.values()) for few, _ in values))
    for rank, (few, many) in enumerate(values):
        if few.blocks < 1 or many.blocks != few.blocks + 1:
            raise ValueError(
                f"the stage of rank {rank} has {few.blocks} blocks in one slice and {many.blocks} in the next one; "
                "split the layers so that the most expensive stage costs least"
            )
    return max(_longer(plan, few.peaks[part], many.peaks[part]) for few, many in values for part in few.peaks)


def _growth(plan: TrainingPlan) -> float:
    """Return how many blocks more a stage of the whole plan has than in the slices with few layers."""
    return (plan.model.layers - slices(plan)[0].model.layers) / plan.layout.pipeline


def _longer(plan: TrainingPlan, few: float, many: float) -> float:
    """Return the value of the whole plan, by the slices with few and with many layers."""
    return few + _growth(plan) * (many - few)
