"""Measure a plan of the 13-billion challenge: the modelled time of a step, by runs of slices of it on 32 virtual GPUs.

The entry runs on one rank and answers with its plan, which is data. The solutions' modules carry it out,
on ranks that this process makes and that the entry does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from labkit import catalogue
from labkit.challenges.challenge import Outcome, on_this_machine, outcomes_until_fault
from labkit.challenges.step_13b.layouts import layout_of
from labkit.challenges.step_13b.trainings import PUBLISHED, Training, drawn
from labkit.clusters import Cluster, Job
from labkit.clusters.virtual import virtual
from labkit.course.phase4_production.llm_13b.given import TrainingPlan, extended, measured, slices
from labkit.predict import Plan, Transformer

FUNCTION = "plan"
ANSWER_SECONDS = 60.0
"""Time limit for an entry's answer, in seconds on the clock of this machine."""
RUN_SECONDS = 600.0
"""Time limit for the slices of a plan, in seconds on the clock of this machine."""
TEMPLATE = '''"""My entry for `labkit challenge step_13b`: one file, which may import torch and labkit."""

from __future__ import annotations

from typing import Any


def plan(training: dict[str, Any]) -> dict[str, Any]:
    """Return how to train a GPT on a cluster: its step must be short, and fit into each GPU's memory.

    training: the model and the cluster.
        layers, width, heads, vocab, sequence    of the model; weights and gradients are in bfloat16
        batch            sequences of a step, over all GPUs
        nodes            number of nodes, of "gpus_per_node" GPUs each; ranks fill node after node
        memory_gb        of each GPU, in 1e9 bytes
        tflops           1e12 operations per second that matrix products reach on a GPU
        port_gb_per_s    of each GPU to those of its node, in 1e9 bytes per second and direction
        card_gb_per_s    of each node to the others, by all its network cards together
        slowdown         for each node: how many times as long it computes
        card_share       for each node: share of card_gb_per_s that it has
        options          of `labkit.hardware.topology`, for `labkit.predict`; without what makes nodes unequal
    Returns all of:
        data, pipeline, tensor    ranks along each axis; their product is the number of GPUs. Neighbours share tensors,
                                  then data; stages are farthest apart, 4 at most
        microbatch                sequences of a forward pass; "batch" is a multiple of data * microbatch
        zero                      1: data-parallel ranks share the optimizer's state; 0: each has all of it
        recompute                 "full": each block is computed again in the backward pass; "none"
    """
    tensor = training["gpus_per_node"]
    data = training["nodes"]
    return {"data": data, "pipeline": 1, "tensor": tensor, "microbatch": 1, "zero": 1, "recompute": "full"}
'''


def trainings_of(seed: int | None) -> tuple[Training, ...]:
    """Return the published trainings, or those drawn from a seed."""
    return PUBLISHED if seed is None else drawn(seed)


def instances(seed: int | None = None) -> list[str]:
    """Describe the published trainings, or those drawn from a seed."""
    return [f"{training.name}: {training.describe()}" for training in trainings_of(seed)]


def bounds(seed: int | None = None) -> dict[str, float]:
    """Return the lower bound in seconds for each of these trainings."""
    return {training.name: training.lower_bound() for training in trainings_of(seed)}


def measure(
    source: str,
    name: str,
    advance: Callable[[str], None] = lambda text: None,
    seed: int | None = None,
    make: Callable[..., Cluster] = on_this_machine,
    trainings: Sequence[Training] = (),
) -> list[Outcome]:
    """Run the text of an entry for each training; stop after the first fault. See `Race.measure`.

    seed: draws the trainings, unless they are given; None: the published ones.
    """
    instances = ((training.name, training) for training in trainings or trainings_of(seed))
    return outcomes_until_fault(instances, advance, lambda training: _measured(source, name, training, make))


def _measured(source: str, name: str, training: Training, make: Callable[..., Cluster]) -> Outcome:
    module = f"challenges/{name}"
    job = Job(
        call=(module, FUNCTION),
        arguments=(((training.figures(),), {}),),
        modules={module: source},
        timeout=ANSWER_SECONDS,
        trace=False,
    )
    run = make(nnodes=1, nproc_per_node=1).run(job)
    if not run.ok:
        return Outcome("", math.nan, run.diagnosis())
    try:
        layout = layout_of(run.values[0], training)
    except ValueError as error:
        return Outcome("", math.nan, str(error))
    return carried_out(layout, training)


def carried_out(layout: Plan, training: Training) -> Outcome:
    """Return the modelled time of a step of this layout."""
    shown = f"data {layout.data}, pipeline {layout.pipeline}, tensor {layout.tensor}, ZeRO {layout.zero}"
    shown += f", microbatch {layout.microbatch}, recomputation {layout.recompute}"
    plan = TrainingPlan(training.model, layout, 1)
    if fault := _different_values(layout, training):
        return Outcome("", math.nan, f"{shown}: {fault}")
    job = Job.calling(measured, slices(plan), modules=_modules(), timeout=RUN_SECONDS, trace=False)
    run = virtual(**training.options, faults=training.faults, fake=True).run(job)
    if not run.ok:
        return Outcome("", math.nan, f"{shown}: slices of the plan do not run\n{run.diagnosis()}")
    step = extended(plan, run.values)
    held, most = step.nbytes / 1e9, training.cluster.gpu.memory_gb
    if held > most:
        return Outcome("", math.nan, f"{shown}: the fullest GPU needs {held:.1f} GB, but has {most:g} GB")
    share = training.lower_bound() / step.seconds
    return Outcome("", step.seconds, "", (f"{shown}; {held:.1f} of {most:g} GB; {share:.1%} of the bound's speed",))


def _modules() -> dict[str, str]:
    exercise = catalogue.find("llm_13b")
    return {needed.name: needed.source("solution")[0] for needed in (*exercise.builds_on, exercise)}


def losses_of(plan: TrainingPlan) -> list[float]:
    """On a rank: train, and return the losses, on the last stage's ranks."""
    import torch.distributed as dist

    from labkit.exercises import llm_13b

    dist.init_process_group("nccl")
    losses: dict[int, float] = llm_13b.train(plan).losses
    return [losses[step] for step in sorted(losses)]


def _different_values(layout: Plan, training: Training) -> str:
    """Train a small model by the same layout, two steps in float32, and by one rank; return what differs, if any."""
    small = Transformer("small", max(2, layout.pipeline), 8 * layout.tensor, layout.tensor, 256, 8, tied=True)
    microbatches = min(TrainingPlan(training.model, layout, 1).microbatches, 2)
    many = replace(layout, batch=layout.data * microbatches, microbatch=1, precision="fp32")
    single = Plan(batch=many.batch, microbatch=many.batch, precision="fp32")
    cluster = training.cluster
    sizes = [(cluster.nnodes, cluster.nproc_per_node, many), (1, 1, single)]
    losses_of_both = []
    for nnodes, gpus, this in sizes:
        plan: Any = TrainingPlan(small, this, 2, learning_rate=0.01, warmup_steps=2)
        job = Job.calling(losses_of, plan, modules=_modules(), timeout=RUN_SECONDS, trace=False)
        run = virtual(nnodes=nnodes, nproc_per_node=gpus).run(job)
        if not run.ok:
            return f"a small model does not train\n{run.diagnosis()}"
        losses_of_both.append([losses for losses in run.values if losses])
    (expected,) = losses_of_both[1]
    for losses in losses_of_both[0]:
        if any(not math.isclose(mine, right, rel_tol=1e-4) for mine, right in zip(losses, expected, strict=True)):
            return f"a small model has losses {losses}, and {expected} on one rank"
    return ""
