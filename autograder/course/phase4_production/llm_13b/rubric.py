"""Hidden rubric of llm_13b: 25 points, 10 for plans and forecasts, 15 for the training that carries them out.

The judge predicts every layout itself, and runs one plan on ranks of its own, with the solutions' modules: a plan that
only claims to fit, or to be fast, is found out. The small siblings train on real tensors; one process of the judge
computes the same steps. Checkpoints are kept in the ranks' memory and go through the judge to the ranks that resume.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from labkit import Job, catalogue, virtual
from labkit.checks import Args, Draw, Ranks, Submission, check, expect
from labkit.clusters import Run
from labkit.course.phase4_production.autotune.given import LayoutSpace
from labkit.course.phase4_production.llm_13b.given import (
    RESTART_SECONDS,
    Extended,
    TrainingPlan,
    as_trained,
    extended,
    measured,
    slices,
)
from labkit.course.phase4_production.llm_13b.scenarios import (
    cluster_of,
    forecasted,
    generated,
    loss_of,
    model_of,
    one_process,
    plan_of,
    planned,
    right_tokens,
    trained,
)
from labkit.predict import FITTED, Plan, predict
from labkit.predict.running import FAILURES_PER_GPU_HOUR, checkpoint_interval

FORBIDDEN = {
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.pipelining.pipeline",
    "labkit.predict.search",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
CLOSE = 1.05
"""A plan's step may take this many times as long as the best of all layouts."""

GPT_13B = [40, 5120, 40, 2048, 50304]
GPT_26B = [82, 5120, 40, 2048, 50304]
GPT_1B = [24, 1792, 14, 2048, 50304]
GPT_7B = [32, 4096, 32, 2048, 50304]
GPT_2B = [24, 2048, 16, 2048, 50304]
CLUSTERS: list[list[Any]] = [
    [GPT_13B, "p4d", 4, {}, None],
    [GPT_13B, "dgx-h100", 2, {}, None],
    [GPT_13B, "dgx-1", 8, {}, None],
    [GPT_7B, "dgx-a100", 2, {}, None],
    [GPT_7B, "p4d", 2, {}, None],
    [GPT_7B, "cloud-l4", 4, {}, 128],
    [GPT_2B, "dgx-a100", 1, {"memory_gb": 16.0}, 64],
    [GPT_2B, "cloud-t4", 4, {}, 64],
]
"""On each of them the fastest layout of all does not fit: it is 7 % faster or more."""


# What the judge makes of it -------------------------------------------------------------------------------------------


class Planned:
    """A returned plan, checked, and predicted by the judge."""

    def __init__(self, case: list[Any], seen: Any) -> None:
        sizes, preset, nnodes, changes, batch, tokens = case
        self.model, self.cluster = model_of(*sizes), cluster_of(preset, nnodes, **changes)
        gpus = self.cluster.world_size
        self.what = f"{self.model.parameters / 1e9:.1f} billion parameters on {gpus} {self.cluster.gpu.name}"
        expect(isinstance(seen, dict), f"a plan for {self.what}").holds(str(seen)[:200])
        self.layout, self.steps, self.forecast = Plan(**seen["layout"]), seen["steps"], seen["forecast"]
        batch = batch or 16 * gpus
        expect(self.layout.batch, f"batch of {self.what}").equals(batch)
        expect(as_trained(self.layout), f"layout of {self.what}, as the trainer runs it").equals(self.layout)
        self.step = predict(self.model, self.layout, self.cluster)
        held = f"GB of a GPU, at most, {self.what}"
        expect(self.step.device_bytes.high / 1e9, held).at_most(self.cluster.gpu.memory_gb)
        expect(self.steps, f"steps for {tokens:.4g} tokens, {self.what}").equals(
            math.ceil(tokens / batch / self.model.sequence)
        )

    @property
    def rate(self) -> float:
        """Tokens per second of a GPU."""
        return self.step.tokens_per_second / self.cluster.world_size

    def best_seconds(self) -> float:
        """Return the shortest step of all layouts that the trainer can run, and that fit."""
        layouts = [as_trained(one) for one in LayoutSpace(self.model, self.cluster, self.layout.batch).all()]
        steps = [predict(self.model, one, self.cluster) for one in layouts if one is not None]
        return min(one.step_seconds for one in steps if one.surely_fits)


def planned_by(submission: Submission, ranks: Ranks, cases: list[list[Any]]) -> list[Planned]:
    """Return the submission's plans for the cases, checked."""
    (found,) = ranks(1).call(submission.used_by(planned), [Args(cases)]).values
    return [Planned(case, seen) for case, seen in zip(cases, found, strict=True)]


@functools.lru_cache(maxsize=8)
def own_run(plan: TrainingPlan, nnodes: int) -> Extended:
    """Return what the plan takes on virtual A100s, by the judge's own run of the solutions' modules."""
    exercise = catalogue.find("llm_13b")
    modules = {one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)}
    cluster = virtual("dgx-a100", nnodes=nnodes, nproc_per_node=plan.layout.ranks // nnodes, fake=True)
    job = Job.calling(measured, slices(plan), modules=modules, trace=False, timeout=300)
    return extended(plan, cluster.run(job).raise_if_failed().values)


def run(
    submission: Submission, ranks: Ranks, sizes: list[int], layout: dict[str, Any], steps: int,
    saved: list[dict[str, Any]] | None = None, own_loop: bool = False, **options: Any,
) -> Run:  # fmt: skip
    """Train. saved: checkpoints of each rank; None: the plan has no folder."""
    count = layout.get("data", 1) * layout.get("pipeline", 1) * layout.get("tensor", 1)
    own = [None] * count if saved is None else saved
    given = [Args(sizes, layout, steps, options, one, own_loop) for one in own]
    return ranks(count).call(submission.used_by(trained), given)


def sizes_of(draw: Draw) -> list[int]:
    """Return layers, width, heads and sequence of a sibling."""
    return [draw.choice([2, 3]), draw.choice([16, 24]), 2, draw.choice([6, 9])]


# Plans ----------------------------------------------------------------------------------------------------------------


@check(points=3, todo=1, title="plans within 5 % of the best layout that fits", look_at="plan: measure")
def layouts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [[*case, draw.uniform(1e9, 1e11)] for case in draw.sample(CLUSTERS, 5)]
    for made in planned_by(submission, ranks, cases):
        what = f"seconds of a step of {made.what}, beside the best of all layouts"
        expect(made.step.step_seconds, what).at_most(CLOSE * made.best_seconds())


@check(points=2, todo=1, title="13 billion on 32 GPUs: every requirement", look_at="plan, forecast")
def requirements(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases: list[list[Any]] = [[GPT_13B, "dgx-a100", nnodes, {}, None, 25e9] for nnodes in (4, 1)]
    cases += [[GPT_1B, "dgx-a100", 1, {"nproc_per_node": gpus}, None, 25e9] for gpus in (1, 2, 4, 8)]
    cases.append([GPT_26B, "dgx-a100", 4, {}, None, 25e9])
    large, small, *ones, _ = planned_by(submission, ranks, cases)
    expect(large.rate / small.rate, "13 billion: tokens per second and GPU on 32 GPUs, over those on 8").at_least(0.8)
    for one in ones[1:]:
        what = f"1 billion: tokens per second and GPU on {one.cluster.world_size} GPUs, over one GPU's"
        expect(one.rate / ones[0].rate, what).at_least(0.9)
    seen = large.forecast
    limits = {"days": 5.0, "checkpoint_seconds": 120.0, "recovery_seconds": 300.0, "memory_gb": 80.0}
    for name, most in limits.items():
        expect(seen[name], f"forecast of 13 billion parameters on 32 GPUs: {name}").at_most(most)
    right = large.steps * large.step.step_seconds / 86_400
    expect(seen["days"], "days of 25 billion tokens, failures included, at least the steps' own").at_least(right)


@check(points=2, todo=1, title="a plan against the judge's own run", look_at="plan: as trained; forecast")
def beside_a_run(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    (made,) = planned_by(submission, ranks, [[GPT_13B, "dgx-a100", 1, {}, None, 25e9]])
    plan = TrainingPlan(made.model, made.layout, made.steps)
    real = own_run(plan, 1)
    what = f"{made.what}, from slices of it on 8 virtual GPUs"
    expect(real.nbytes / 1e9, f"GB of {what}").at_most(80)
    forecast = made.forecast["step_seconds"]
    expect(forecast, f"forecast of a step, {real.seconds:.4g} s by {what}").at_least(0.8 * real.seconds)
    expect(forecast, f"forecast of a step, {real.seconds:.4g} s by {what}").at_most(1.25 * real.seconds)


@check(points=2, todo=1, title="forecasts", look_at="forecast: what a node writes and reads; the interval")
def figures(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases, wanted = [], []
    for _ in range(3):
        nnodes, tensor, pipeline = draw.choice([2, 4, 8]), draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
        data = 8 * nnodes // (tensor * pipeline)
        layout: dict[str, Any] = {
            "batch": 4 * data,
            "microbatch": 1,
            "data": data,
            "pipeline": pipeline,
            "tensor": tensor,
            "zero": 1,
        }
        storage, steps = draw.choice(["cloud-disk-1gb", "cloud-disk", "nvme-1"]), draw.randrange(1000, 50_000)
        cases.append([GPT_13B, "dgx-a100", nnodes, {"storage": storage}, layout, steps])
        model, cluster = model_of(*GPT_13B), cluster_of("dgx-a100", nnodes, storage=storage)
        step, count, gpus = predict(model, Plan(**layout), cluster, constants=FITTED), model.parameters, 8 * nnodes
        saving = cluster.storage.write_seconds(14 * count / nnodes)
        read = 8 * (2 * count / (tensor * pipeline) + 12 * count / gpus)
        recovery, mean = RESTART_SECONDS + cluster.storage.read_seconds(read), 3600 / FAILURES_PER_GPU_HOUR / gpus
        every = checkpoint_interval(saving, mean)
        share = every / (mean * math.exp(recovery / mean) * math.expm1((every + saving) / mean))
        wanted.append({
            "step_seconds": step.step_seconds, "memory_gb": step.device_bytes.high / 1e9, "checkpoint_seconds": saving,
            "recovery_seconds": recovery, "checkpoint_every_seconds": every, "goodput": share,
            "days": steps * step.step_seconds / share / 86_400,
        })  # fmt: skip
    (found,) = ranks(1).call(submission.used_by(forecasted), [Args(cases)]).values
    for case, seen, right in zip(cases, found, wanted, strict=True):
        for name, value in right.items():
            near, so = (torch.tensor(float(one), dtype=torch.float64) for one in (value, seen[name]))
            expect([so], f"{name} of 13 billion parameters: {case[1:]}").close_to([near], rel=1e-4)


@check(points=1, todo=1, title="what does not fit is refused", look_at="the given first line of plan must stay")
def refusals(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    big = [80, 128 * draw.randrange(150, 170), 128, 2048, 50304]
    cases: list[list[Any]] = [
        [GPT_1B, "dgx-a100", 1, {}, draw.choice([0, -8, 2.5]), 1e9],
        [GPT_1B, "dgx-a100", 1, {}, 64, draw.choice([0, -1e9, math.inf])],
        [big, "dgx-a100", 1, {}, 64, 1e9],
    ]
    (found,) = ranks(1).call(submission.used_by(planned), [Args(cases)]).values
    for begin, seen in zip(("batch must be", "tokens must be", "no layout of"), found, strict=True):
        expect(str(seen).startswith(f"ValueError: {begin}"), f"ValueError that begins with {begin!r}").holds(str(seen))


# The trainer ----------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=2,
    title="shards, copies in float32, recomputation",
    look_at="build: ZeroOptimizer, MasterAdamW, Recomputed",
)
def parts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [2, 32, 2, draw.choice([6, 9])]
    for zero, recompute, precision in ((1, "full", "bf16"), (0, "none", "fp32")):
        layout: dict[str, Any] = {"batch": 8, "microbatch": 2, "data": 2, "tensor": 2, "zero": zero}
        layout |= {"recompute": recompute, "precision": precision}
        seen = run(submission, ranks, sizes, layout, 1, own_loop=True)
        what = f"ZeRO {zero}, {precision}, recomputation {recompute}"
        whole = (12 if precision == "bf16" else 8) * model_of(*sizes).parameters / (2 * (2 if zero else 1))
        for rank, value in enumerate(seen.values):
            name = "torch.bfloat16" if precision == "bf16" else "torch.float32"
            expect(value["dtypes"], f"{what}: dtypes of the weights of rank {rank}").equals([name])
            state = f"{what}: bytes of optimizer state of rank {rank}"
            expect(value["state"], state, unit="bytes").at_least(whole)
            expect(value["state"], state, unit="bytes").at_most(1.15 * whole + 4096)
            calls = 8 if recompute == "full" else 4
            expect(value["calls"], f"{what}: forward passes of 2 blocks in 2 microbatches, rank {rank}").equals(calls)
        groups = {tuple(seen.trace.members(event)) for event in seen.trace.collectives(0) if event.nbytes > 64}
        expect((0, 1) in groups, f"{what}: rank 0 sums activations with rank 1").holds(f"collectives of {groups}")
        expect((0, 2) in groups, f"{what}: rank 0 averages gradients with rank 2").holds(f"collectives of {groups}")


# Checkpoints ----------------------------------------------------------------------------------------------------------


@check(points=4, todo=3, title="a step counts if all places can load it", look_at="load: exchange after each attempt")
def resumes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    pipeline = draw.choice([True, False])
    layout: dict[str, Any] = {"batch": 8, "microbatch": 4, "data": 2, "pipeline" if pipeline else "tensor": 2}
    place = [0, 0, 1, 1] if pipeline else [0, 1, 0, 1]
    sizes = [2, 16, 2, 6]
    options: dict[str, Any] = {"held_out": 6, "learning_rate": 0.01, "seed": draw.randrange(100)}
    whole = run(submission, ranks, sizes, layout, 4, [{}] * 4, True, checkpoint_every=1, **options)
    names = [f"step_0000000{number}" for number in (1, 2, 3, 4)]
    for rank, value in enumerate(whole.values):
        expect(sorted(value["saved"]), f"folders of rank {rank} after 4 steps").equals(names)
        own = f"pp{place[rank] if pipeline else 0}_tp{0 if pipeline else place[rank]}"
        expect(value["places"], f"folder of the checkpointer of rank {rank}").equals([own])
    other = draw.choice([0, 1])
    behind = [names[:2] if place[rank] == other else names[:3] for rank in range(4)]
    nothing = [names[:2] if place[rank] == other else [] for rank in range(4)]
    cases: list[tuple[str, list[list[str]], list[str], Any]] = [
        (f"step 3 is missing in place {other}", behind, [], 2),
        (f"steps 2 and 3 are torn in place {other}", [names[:3]] * 4, names[1:3], 1),
        (f"place {1 - other} has nothing", nothing, [], 0),
        (f"all are torn in place {other}", [names[:2]] * 4, names[:2], "CheckpointError"),
    ]
    for text, folders, torn, first in cases:
        ranks.renew()
        saved = [
            {
                name: torch.empty(0, dtype=torch.uint8) if name in torn and place[rank] == other else own["saved"][name]
                for name in folders[rank]
            }
            for rank, own in enumerate(whole.values)
        ]
        again = run(submission, ranks, sizes, layout, 4, saved, True, **options)
        for rank, (seen, right) in enumerate(zip(again.values, whole.values, strict=True)):
            expect(seen.get("first_step", seen.get("error")), f"{text}: first step of rank {rank}").equals(first)
            if first != "CheckpointError":
                rest = {step: loss for step, loss in right["losses"].items() if step >= first}
                expect(seen["losses"], f"{text}: losses of rank {rank} from there").equals(rest)
                expect(seen["weights"], f"{text}: weights of rank {rank} at the end").equals(right["weights"])


# Training -------------------------------------------------------------------------------------------------------------


@check(points=4, todo=4, title="a training is that of one process", look_at="train: rates, parts of the batch; build")
def like_one_process(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    meshes: list[dict[str, Any]] = [
        {"batch": 8, "microbatch": 2, "data": 2, "pipeline": 2},
        {"batch": 6, "microbatch": 3, "pipeline": 2, "tensor": 2, "recompute": "full"},
        {"batch": 6, "microbatch": 1, "data": 3, "zero": 0},
    ]
    for layout in meshes:
        sizes, steps = sizes_of(draw), 5
        options: dict[str, Any] = {
            "held_out": 8,
            "learning_rate": 0.02,
            "seed": draw.randrange(1000),
            "warmup_steps": 3,
        }
        seen = run(submission, ranks, sizes, layout, steps, **options)
        right = one_process(sizes, layout, steps, **options)
        plan = plan_of(sizes, layout, steps, **options)
        last = [rank for rank, value in enumerate(seen.values) if value["losses"]]
        expect(len(last) > 0, f"{layout}: a rank has losses").holds("none has")
        for rank, value in enumerate(seen.values):
            rates = torch.tensor([[max(one), min(one)] for one in value["rates"]], dtype=torch.float64)
            wanted = torch.tensor([[plan.learning_rate_at(step)] * 2 for step in range(steps)], dtype=torch.float64)
            expect([rates], f"{layout}: learning rates of rank {rank}").close_to([wanted], rel=1e-9)
            own = layout["batch"] // layout.get("data", 1)
            windows = [len(batch) for batch, _ in value["batches"]]
            expect(windows, f"{layout}: windows of rank {rank} in each step").equals([own] * steps)
            loss = torch.tensor([loss_of(sizes, weights, 16) for weights in (value["weights"], right["weights"])])
            expect([loss[0]], f"{layout}: loss of rank {rank}'s whole model, by the judge").close_to(
                [loss[1]], rel=1e-4
            )
        for rank in last:
            losses = [seen.values[rank]["losses"].get(step, math.nan) for step in range(steps)]
            expect([torch.tensor(losses)], f"{layout}: losses of rank {rank}").close_to(
                [torch.tensor(right["losses"])], rel=1e-4
            )


@check(points=2, todo=4, title="interrupted, and resumed exactly", look_at="train: from where, and when it saves")
def interrupted(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes, layout, every = [2, 16, 2, 6], {"batch": 8, "microbatch": 4, "data": 2, "pipeline": 2}, draw.choice([2, 3])
    options: dict[str, Any] = {"held_out": 6, "learning_rate": 0.01, "seed": draw.randrange(100)}
    whole = run(submission, ranks, sizes, layout, 5, [{}] * 4, checkpoint_every=every, **options)
    names = [f"step_{step:08}" for step in range(every, 6, every)]
    for rank, value in enumerate(whole.values):
        what = f"folders of rank {rank} after 5 steps, a checkpoint every {every}"
        expect(sorted(value["saved"]), what).equals(names)
    ranks.renew()
    again = run(submission, ranks, sizes, layout, 5, [value["saved"] for value in whole.values], **options)
    first = int(names[-1][5:])
    for rank, (seen, right) in enumerate(zip(again.values, whole.values, strict=True)):
        expect(seen["first_step"], f"first step of rank {rank} after a checkpoint of step {first}").equals(first)
        rest = {step: loss for step, loss in right["losses"].items() if step >= first}
        expect(seen["losses"], f"losses of rank {rank} from step {first}").equals(rest)
        expect(seen["weights"], f"weights of rank {rank} at the end").equals(right["weights"])


@check(points=2, todo=4, title="generate", look_at="generate: the last `context` tokens; by their probabilities")
def generation(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for _ in range(2):
        table = 2 * torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
        prompt = torch.tensor([draw.randrange(5) for _ in range(draw.choice([1, 3]))], dtype=torch.uint8)
        count, context, seed = 30, draw.choice([4, 6]), draw.randrange(1000)
        (found,) = ranks(1).call(submission.used_by(generated), [Args(table, prompt, count, context, seed)]).values
        expect(found[1], f"most tokens that the model sees, context {context}").equals(context)
        right = right_tokens(table, prompt, count, context, seed)
        expect(found[0], f"{len(prompt)} tokens of a prompt, and {count} more").equals(right)
