"""Visible checks and hints of zero.

A model's layers add up their weights: each weight's gradient is the factor that a rank calls the model with, 10**rank.
After a step of SGD with a learning rate of 1, all weights are the mean of the factors, negative: -5.5 on two ranks. So
-11 is a sum, -1 is rank 0's alone, and 0 was not stepped.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.zero.scenarios import joined, sgd_steps, stack, volume
from labkit.hardware import Link
from labkit.trace import Category, Kind

SECONDS = 0.01
"""Duration of a layer's forward pass, where time matters; backward takes twice as long."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def stepped(
    stage: int,
    sizes: list[int],
    factors: list[float],
    forward: Any = None,
    backward: Any = None,
    tied: bool = False,
    **how: Any,
) -> Any:
    """On a rank: a step for each factor; return the first and last weight of each layer, and norms before clipping."""
    model, norms = sgd_steps(stage, stack(sizes, forward, backward, tied), factors, **how)
    state = model.state_dict()
    layers = [state[f"layers.{number}.weight"] for number in range(len(sizes))]
    return {"weights": [(layer[0].item(), layer[-1].item()) for layer in layers], "norms": norms}


# What the checks read -------------------------------------------------------------------------------------------------


def go(
    submission: Submission, ranks: Ranks, stage: int, world_size: int, sizes: list[int], steps: int = 1,
    hardware: dict[str, Any] | None = None, **how: Any,
) -> Run:  # fmt: skip
    """Take steps on ranks whose factors are 1, 10, 100, ...; check the weights."""
    given = [Args(stage, sizes, [10.0**rank] * steps, **how) for rank in range(world_size)]
    run = ranks(world_size, **(hardware or {})).call(submission.used_by(stepped, stack, sgd_steps), given)
    if not how.get("momentum") and not how.get("norm"):
        mean = sum(10.0**rank for rank in range(world_size)) / world_size
        for rank, value in enumerate(run.values):
            for number, seen in enumerate(value["weights"]):
                twice = 2 if how.get("tied") and number in (0, len(sizes) - 1) else 1
                wanted = torch.full((2,), -mean * steps * twice)
                where = f"after {steps} steps, stage {stage}, rank {rank} of {world_size}"
                what = f"first and last weight of layer {number} {where}"
                expect(torch.tensor(seen), what).close_to(wanted, rel=1e-5)
    return run


def marks(run: Run, rank: int) -> list[float]:
    starts = sorted(e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "mark")
    if not starts:
        raise NotMeasurable("what is sent when is known on virtual ranks")
    return starts


def sent(run: Run, rank: int, begin: float, end: float) -> int:
    return sum(volume(e, len(run.ranks)) for e in run.trace.collectives(rank) if begin <= e.start < end)


def most(run: Run, rank: int, begin: float, category: Category) -> int:
    """Return the most bytes that a rank held for this purpose, from a time on, also if nothing changed since."""
    held = [(s.time, s.nbytes) for s in run.trace.memory if s.rank == rank and s.category is category]
    before = [nbytes for time, nbytes in held if time < begin]
    return max(before[-1:] + [nbytes for time, nbytes in held if time >= begin], default=0)


# Checks ---------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=1,
    title="memory of 13 billion parameters on 8 GPUs",
    look_at="estimate_memory: which of the three are shards in a stage, which are whole",
)
def estimate(submission: Submission, ranks: Ranks) -> None:
    wanted: list[tuple[Args, list[float], str]] = [
        (Args(13e9, 8, 0), [208, 208, 1, 5e9], "stage 0"),
        (Args(13e9, 8, 1), [208, 117, 208 / 117, 80e9 / 9], "stage 1"),
        (Args(13e9, 8, 2), [208, 71.5, 208 / 71.5, 80e9 / 5.5], "stage 2"),
        (Args(13e9, 8, 3), [208, 26, 8, 40e9], "stage 3"),
        (Args(13e9, 8, 1, (2, 2, 12)), [208, 71.5, 208 / 71.5, 80e9 / 5.5], "stage 1, 2, 2 and 12 bytes"),
        (Args(13e9, 8, 2, (2, 2, 12), 40, True), [208, 26, 8, 20e9], "stage 2, optimizer offloaded, 2, 2 and 12 bytes"),
    ]
    for arguments, figures, what in wanted:
        (seen,) = ranks(1).call(submission.estimate_memory, [arguments]).values
        for name, value in zip(("baseline_gb", "zero_gb", "reduction_factor", "max_parameters"), figures, strict=True):
            figure = seen.get(name) if isinstance(seen, dict) else None
            expect(figure, f"{name} of 13e9 parameters on 8 GPUs, {what}").close_to(float(value), rel=1e-6)
    (seen,) = (
        ranks(1)
        .call(submission.estimate_memory, [Args(13e9, 8, 3, offload_optimizer=True, offload_params=True)])
        .values
    )
    figure = seen.get("max_parameters") if isinstance(seen, dict) else None
    expect(figure, "max_parameters at stage 3 with everything offloaded").equals(float("inf"))


@check(points=1, todo=2, title="joined, and padded with zeros", look_at="join: how many zeros are missing")
def padding(submission: Submission, ranks: Ranks) -> None:
    tensors = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])]
    for world_size, zeros in ((1, 0), (2, 0), (3, 2), (8, 4)):
        ((seen,),) = ranks(1).call(submission.used_by(joined), [Args([(tensors, world_size)])]).values
        wanted = torch.tensor([1.0, 2.0, 3.0, 4.0] + [0.0] * zeros)
        expect(seen, f"[1, 2, 3] and [4] joined for {world_size} ranks").equals(wanted)


@check(
    points=4,
    todo=3,
    title="stages 1 and 2 step with the mean of all gradients",
    look_at="reduce and wait_for_gradients; step: which tensors are gathered",
)
def optimizer_steps(submission: Submission, ranks: Ranks) -> None:
    for stage, world_size, cap in ((1, 1, 25), (1, 2, 25), (2, 3, 1e-5), (1, 3, 1e-5), (2, 2, 25)):
        go(submission, ranks, stage, world_size, [3, 5, 4], steps=2, bucket_cap_mb=cap)
    run = ranks(3).call(
        submission.used_by(stepped, stack, sgd_steps),
        [Args(2, [3, 5], [10.0**rank], group=group_of([1, 2])) if rank else None for rank in range(3)],
    )
    seen = [value["weights"][0][0] for value in run.values[1:]]
    expect(seen, "first weight in a group of ranks 1 and 2, whose factors are 10 and 100").equals([-55.0] * 2)


@check(
    points=3,
    todo=3,
    title="stage 2: gradients leave while the backward pass goes on; stage 1: in the step",
    look_at="gradient_arrived: what is complete; reduce does not wait for what it begins",
)
def early(submission: Submission, ranks: Ranks) -> None:
    sizes = [1000] * 4
    link = {"inter_node": Link("slow", 1.0, SECONDS / 4, "a bucket takes a part of a layer's time")}
    how: dict[str, Any] = {"mark": work("mark", 1e-6), "backward": work("backward", SECONDS), "bucket_cap_mb": 1e-3}
    for stage in (1, 2):
        run = go(submission, ranks, stage, 2, sizes, hardware=link, **how)
        for rank in range(2):
            begin, middle, after, end = marks(run, rank)
            what = f"bytes that rank {rank} sends in the backward pass, stage {stage}, 4 layers of 4,000 bytes"
            expect(sent(run, rank, middle, after) // 4000, f"layers in the {what}").equals(4 if stage == 2 else 0)
            traffic = sent(run, rank, begin, end) / 16_000
            expect(traffic, f"whole models that rank {rank} sends in a step of stage {stage}").at_most(2.1)
            if stage == 2:
                what = f"seconds backward on rank {rank}: 4 layers of {SECONDS} s, and messages meanwhile"
                expect(after - middle, what, unit="seconds").at_most(4.3 * SECONDS)


@check(
    points=2,
    todo=3,
    title="stages 1 and 2 hold shards",
    look_at="reduce: whole gradients are freed; one reduction at a time",
)
def optimizer_memory(submission: Submission, ranks: Ranks) -> None:
    for stage in (1, 2):
        how: dict[str, Any] = {"mark": work("mark", 1e-6), "bucket_cap_mb": 0.03, "momentum": 0.5}
        run = go(submission, ranks, stage, 4, [8192] * 6, steps=2, **how)
        if run.trace.clock != "modelled":
            raise NotMeasurable("memory is counted on virtual ranks only")
        for rank in range(4):
            begin = marks(run, rank)[4]
            whole = 6 * 4 * 8192
            what = f"of rank {rank} of 4, stage {stage}, as a share of 6 equal layers"
            expect(most(run, rank, begin, Category.OPTIMIZER) / whole, f"optimizer state {what}").at_most(0.3)
            gradients = most(run, rank, begin, Category.GRADIENT) / whole
            expect(gradients, f"gradients {what}").at_most(1.05 if stage == 1 else 0.62)
            messages = most(run, rank, begin, Category.COMMUNICATION) / whole
            expect(messages, f"gradients that are sent, and those that have come, {what}").at_most(0.7)


@check(
    points=2,
    todo=3,
    title="gradients are clipped by the norm of all ranks' shards",
    look_at="clip_grad_norm_: squares are added up over the ranks, then the root is taken",
)
def clipping(submission: Submission, ranks: Ranks) -> None:
    for stage in (1, 2):
        given = [Args(stage, [3, 5, 8], [10.0**rank], norm=2.0) for rank in range(2)]
        run = ranks(2).call(submission.used_by(stepped, stack, sgd_steps), given)
        # 16 gradients of 5.5, and scale's: the sum of all factors times 0
        for rank, value in enumerate(run.values):
            what = f"norm of 16 gradients of 5.5 on rank {rank} of 2, stage {stage}"
            expect(value["norms"][0], what).close_to(22.0, rel=1e-4)
            what = f"first weight on rank {rank}, from a gradient of 5.5 clipped to a norm of 2, stage {stage}"
            expect(value["weights"][0][0], what).close_to(-0.5, rel=1e-4)


@check(
    points=4,
    todo=4,
    title="stage 3 steps with the mean of all gradients",
    look_at="gather: filled before it returns; after_backward: freed, then reduced",
)
def module_steps(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {}), (3, {"prefetch": False}), (3, {"tied": True})]
    for world_size, options in cases:
        go(submission, ranks, 3, world_size, [3, 5, 3], steps=2, **options)
    given = [
        Args(3, [3, 5], [10.0**r], group=group_of([r // 2 * 2, r // 2 * 2 + 1]), hybrid=group_of([r % 2, r % 2 + 2]))
        for r in range(4)
    ]
    run = ranks(4).call(submission.used_by(stepped, stack, sgd_steps), given)
    hint = "wait_for_gradients: self.hybrid, and self.replicas"
    seen = [value["weights"][0][0] for value in run.values]
    what = "first weight with shards over 2 ranks, and two such groups: factors are 1, 10, 100 and 1000"
    expect(torch.tensor(seen), what, look_at=hint).close_to(torch.full((4,), -277.75), rel=1e-5)


@check(
    points=3,
    todo=4,
    title="stage 3: two layers are whole at a time, and three models are sent",
    look_at="free, and what is gathered when; nothing is gathered twice",
)
def units(submission: Submission, ranks: Ranks) -> None:
    sizes, layer = [4096] * 8, 4 * 4096
    run = go(submission, ranks, 3, 4, sizes, steps=2, mark=work("mark", 1e-6))
    for rank in range(4):
        begin, middle, _, end = marks(run, rank)[4:8]
        what = f"layers that rank {rank} of 4 sends and receives, of 8"
        expect(round(sent(run, rank, begin, middle) / layer, 1), f"{what}, forward").at_most(8.1)
        expect(round(sent(run, rank, begin, end) / layer, 1), f"{what}, in a step: 8 forward, 16 backward").at_most(
            24.2
        )
        if run.trace.clock != "modelled":
            raise NotMeasurable("memory is counted on virtual ranks only")
        whole = (most(run, rank, begin, Category.PARAMETER) - 2 * layer) / layer
        expect(whole, f"layers that are whole at a time on rank {rank}, beside its shards").at_most(2.2)


@check(
    points=4,
    todo=4,
    title="the next layer arrives while one computes, forward and backward",
    look_at="gather: `following` is started after waiting for `unit`, and not waited for",
)
def prefetch(submission: Submission, ranks: Ranks) -> None:
    size, count = 4000, 6
    # half of a layer's bytes come from the other rank, in 60 % of its forward pass
    link = {"inter_node": Link("slow", 2 * size / (0.6 * SECONDS) / 1e9, 1e-6, "a layer takes a part of its time")}
    how: dict[str, Any] = {
        "forward": work("forward", SECONDS),
        "backward": work("backward", 2 * SECONDS),
        "mark": work("mark", 1e-6),
    }
    run = go(submission, ranks, 3, 2, [size] * count, steps=2, hardware=link, **how)
    for rank in range(2):
        begin, middle, after, _ = marks(run, rank)[4:8]
        what = f"seconds forward on rank {rank}: 6 layers of 0.01 s, each gathered in 0.006 s"
        expect(middle - begin, what, unit="seconds").at_most(0.073)
        what = f"seconds backward on rank {rank}: 6 layers of 0.02 s, each gathered and reduced in 0.006 s"
        expect(after - middle, what, unit="seconds").at_most(0.14)


HINTS = {
    1: [
        "Write three numbers for each stage: bytes of parameters, gradients and optimizer state that a rank keeps of "
        "one parameter. At stage 2 on 8 GPUs these are 4, 4/8 and 8/8. From which stage on is each of them a shard?",
        "Optimizer state is a shard from stage 1 on, gradients from 2, parameters at 3. What is offloaded counts 0, "
        "but only if it is a shard. `zero_gb` is the sum times the number of parameters; the largest model has "
        "`gpu_memory_gb * 1e9` divided by that sum.",
        "`for nbytes, first, offload in zip(state_bytes, (3, 2, 1), (offload_params, offload_optimizer, "
        "offload_optimizer)):` add `nbytes` if `stage < first`, else `nbytes / num_gpus` unless `offload`.",
    ],
    2: [
        "10 elements for 4 ranks: parts of 3, so 2 zeros. And 12 elements for 4? Then follow one gradient: whole on "
        "every rank; joined with its neighbours; summed; a part of it on each rank; divided by what?",
        "`-n % ranks` zeros are missing. `reduce`: first wait for what is pending; then take, join, and start "
        "`given.reduce_scatter_single(part, whole, group=self.group, async_op=True)`; keep all four things until it "
        "is waited for. Norms cannot be added up, but their squares can.",
        "`self.pending.append((flat, part, whole, work))`; later `work.wait()`, with `self.hybrid` an all-reduce of "
        "`part` over it, `flat.add_gradient(part.div_(self.replicas))`, and `self.pending.clear()` at the end.",
        "`norm = nn.utils.get_total_norm([shard.grad ...])`, `norm = given.on_device(norm, self.flats[0]).square()`, "
        "`dist.all_reduce(norm, group=self.group)`, `norm.sqrt_()`, `nn.utils.clip_grads_with_norm_(shards, max_norm, "
        "norm)`.",
    ],
    3: [
        "Stages 1 and 2 differ in one thing only: when a bucket is reduced. Which buckets are left in `step`, in "
        "stage 1, in stage 2, in stage 2 if a parameter was not used?",
        "`gradient_arrived`: while the bucket whose turn it is has nothing missing, reduce it and go to the next one, "
        "after the last to the first. `finish_gradients`: reduce all; those without gradients send nothing.",
        "`step`: finish, `self.optimizer.step()`, then `given.all_gather_single(bucket.full, bucket.shard.detach(), "
        "group=self.group, async_op=True)` for each bucket, and wait for all of them.",
    ],
    4: [
        "Draw a line of time for four layers: when is each gathered, used and freed, forward and backward? At each "
        "moment at most two are whole. When may the next one be started at the earliest?",
        "`start_gathering`: nothing if `unit.gathering` is not None; else allocate, and one all-gather for each flat. "
        "`gather`: start, wait for all of `unit.gathering`, then start `following`, and do not wait for that.",
        "`unit.gathering = [given.all_gather_single(flat.full, flat.own(), group=self.group, async_op=True) for flat "
        "in unit.flats]`; `free`: `unit.free()` and `unit.gathering = None`; `after_backward`: `self.free(unit)`, then "
        "`self.reduce(unit.flats)`.",
    ],
}
