"""Visible checks and hints of image_classification: a net of three small blocks, compared with one process.

Each rank begins with other weights; those of rank 0 count. All is float64, so that what differs is a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, work
from labkit.clusters import Run
from labkit.course.phase4_production.image_classification.scenarios import (
    CLASSES,
    FEATURES,
    chosen,
    expected,
    fitted,
    net_of,
    rates,
    shapes,
    stepped,
    tested,
)
from labkit.trace import Kind

# Data -----------------------------------------------------------------------------------------------------------------


def weights_of(seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=torch.float64) / 2 for shape in shapes()]


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (count,), generator=draw)


def batches_of(world_size: int, steps: int, count: int, seed: int = 1) -> list[list[list[Tensor]]]:
    """Return for each rank a list of batches."""
    return [[[*samples(count, seed + 100 * rank + step)] for step in range(steps)] for rank in range(world_size)]


def run_steps(
    submission: Submission, ranks: Ranks, world_size: int, options: dict[str, Any], batches: Any, **more: Any
) -> Run:
    given = [Args(options, weights_of(), own, mark=work("mark", 1e-9), **more) for own in batches]
    return ranks(world_size).call(submission.used_by(stepped), given)


def expect_steps(run: Run, batches: Any, what: str, look_at: str = "", **options: Any) -> None:
    """Expect the losses and weights of one process."""
    right = expected(weights_of(), batches, **options)
    for rank, value in enumerate(run.values):
        losses = [of_ranks[rank] for of_ranks in right["losses"]]
        hint = "the mean over this rank's samples, each microbatch with its share"
        expect([torch.tensor(value["losses"])], f"{what}: losses of rank {rank}", look_at=hint).close_to(
            [torch.tensor(losses)], rel=1e-6
        )
        for step, (seen, wanted) in enumerate(zip(value["weights"], right["weights"], strict=True), start=1):
            expect(seen, f"{what}: weights of rank {rank} after step {step}", look_at=look_at).close_to(
                wanted, rel=1e-9
            )


def messages(run: Run, rank: int, step: int) -> list[tuple[str, int]]:
    """Return operation and bytes of what a rank sent within a step, from 0, by its marks."""
    if run.trace.clock != "modelled":
        raise NotMeasurable("messages of a step are counted on virtual ranks, whose traces have marks")
    marks = [event.start for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == "mark"]
    begin, end = marks[2 * step], marks[2 * step + 1]
    return [(event.operation, event.nbytes) for event in run.trace.collectives(rank) if begin <= event.start < end]


# Checks ---------------------------------------------------------------------------------------------------------------


@check(points=3, todo=1, title="choose_strategy: the first that fits", look_at="choose_strategy: bytes per parameter")
def strategies(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[list[float], list[Any], str]] = [
        ([1e9, 8, 21, 0, 8, 0.5], ["ddp", False], "4 + 8 + 8 bytes for each of 1e9 parameters: 20 of 21 GB"),
        ([1e9, 8, 19, 0, 8, 0.5], ["fsdp", False], "20 GB do not fit into 19; in shards 16 / 8 + 1.5 GB"),
        ([1e9, 8, 21, 2, 8, 0.5], ["fsdp", False], "2 GB of activations beside 20 of 21 GB"),
        ([1e9, 8, 3.4, 0, 8, 0.5], ["fsdp", True], "2 GB of shards and three units of 0.5 GB do not fit into 3.4"),
        ([1e9, 8, 1.4, 0, 8, 0.5], ["ValueError", False], "three units of 0.5 GB do not fit into 1.4"),
        ([1e9, 8, 16.5, 0, 4, 0.5], ["ddp", False], "an optimizer of 4 bytes: 16 of 16.5 GB"),
        ([1e9, 2, 7.6, 0, 8, 0.5], ["fsdp", True], "on 2 GPUs a shard has 8 GB"),
    ]
    (results,) = ranks(1).call(submission.used_by(chosen), [Args([case for case, _, _ in cases])]).values
    for seen, (_, wanted, why) in zip(results, cases, strict=True):
        expect(seen, f"strategy, and whether to offload: {why}").equals(wanted)


@check(
    points=4,
    todo=2,
    title="train_step: that of one process, with either strategy",
    look_at="train_step: the share of each microbatch; update: unscale, clip, step, average",
)
def one_process(submission: Submission, ranks: Ranks) -> None:
    for strategy, accumulation, clip in (("ddp", 1, None), ("ddp", 3, 0.2), ("fsdp", 2, 0.2)):
        batches = batches_of(2, 3, 7)
        options: dict[str, Any] = {"strategy": strategy, "gradient_accumulation_steps": accumulation}
        options["gradient_clip_val"] = clip
        run = run_steps(submission, ranks, 2, {**options, "ema_decay": 0.5}, batches)
        what = f"{strategy}, {accumulation} microbatches of 7 samples, clipped to {clip}"
        hint = "with shards the norm is that of all ranks' together: `self.model.clip_grad_norm_`" if clip else ""
        expect_steps(run, batches, what, hint, clip_norm=clip)
        averages = expected(weights_of(), batches, clip, 0.5)["averages"]
        hint = "`self.average.update()` after each step"
        for value in run.values:
            expect(value["averages"], f"{what}: averages of the weights", look_at=hint).close_to(averages, rel=1e-9)


@check(
    points=3,
    todo=2,
    title="messages: DDP sends each gradient once in a step, FSDP keeps shards",
    look_at="wrap: which wrapper; train_step: `self.no_sync(...)` for all microbatches but the last",
)
def traffic(submission: Submission, ranks: Ranks) -> None:
    numel = sum(parameter.numel() for parameter in weights_of())
    batches = batches_of(2, 3, 6)
    run = run_steps(submission, ranks, 2, {"strategy": "ddp", "gradient_accumulation_steps": 3}, batches)
    seen = messages(run, 0, 2)
    what = f"ddp, 3 microbatches: bytes sent in the third step, {numel} gradients of 8 bytes: {seen}"
    expect(sum(nbytes for _, nbytes in seen), what, unit="bytes").equals(8 * numel)
    run = run_steps(submission, ranks, 2, {"strategy": "fsdp"}, batches)
    seen = messages(run, 0, 2)
    kinds = {operation for operation, _ in seen}
    expect(any("gather" in kind for kind in kinds), f"fsdp: an all-gather in the third step: {kinds}").holds("none")
    expect(any("scatter" in kind for kind in kinds), f"fsdp: a reduce-scatter in the third step: {kinds}").holds("none")
    batches = batches_of(4, 3, 6)
    run = run_steps(submission, ranks, 4, {"strategy": "hybrid", "shard_ranks": 2}, batches)
    hint = "wrap: `self.shard_group`, and `self.replica_group` as exercise 15's `hybrid`"
    expect_steps(run, batches, "hybrid, shards on pairs of 4 ranks", hint)
    pairs = {tuple(run.trace.members(one)) for one in run.trace.collectives(3) if "gather" in one.operation}
    expect(sorted(pairs), "hybrid: ranks of rank 3's all-gathers", look_at=hint).equals([(2, 3)])


@check(
    points=3,
    todo=2,
    title="precision, compression, recomputation",
    look_at="wrap: hook and dtype; train_step: `self.autocast()`; update: what an overflow leaves out",
)
def options_of_a_step(submission: Submission, ranks: Ranks) -> None:
    batches = batches_of(2, 4, 6)
    options: dict[str, Any] = {"strategy": "fsdp", "mixed_precision": "bf16"}
    run = run_steps(submission, ranks, 2, options, batches, kind="float32")
    expect(run.values[0]["dtypes"], "dtypes of outputs with mixed_precision='bf16', fsdp").equals(["torch.bfloat16"])
    options = {"strategy": "ddp", "mixed_precision": "fp16", "ema_decay": 0.5}
    given = [
        Args(options, weights_of(), own, "float32", [2] if rank else [], mark=work("mark", 1e-9))
        for rank, own in enumerate(batches)
    ]
    run = ranks(2).call(submission.used_by(stepped), given)
    for rank, value in enumerate(run.values):
        what = f"fp16, an overflow on rank 1 in step 2, rank {rank}"
        expect(value["dtypes"], f"{what}: dtypes of outputs").equals(["torch.float16"])
        expect(value["scales"][:2], f"{what}: loss scale after steps 1 and 2").equals([2.0**10, 2.0**9])
        expect(value["weights"][1], f"{what}: weights after step 2").equals(value["weights"][0])
        expect(value["averages"][1], f"{what}: averages after step 2").equals(value["averages"][0])
        moved = bool((value["weights"][2] != value["weights"][1]).any())
        expect(moved, f"{what}: step 3 changes weights").holds("unchanged")
    numel = sum(parameter.numel() for parameter in weights_of())
    run = run_steps(submission, ranks, 2, {"strategy": "ddp", "compression": "onebit"}, batches)
    nbytes = sum(nbytes for _, nbytes in messages(run, 0, 2))
    expect(nbytes, f"compression='onebit': bytes in a step, of {8 * numel} bytes of gradients").at_most(2 * numel)
    run = run_steps(submission, ranks, 2, {"strategy": "ddp", "activation_checkpointing": True}, batches)
    what = "forward passes of 3 blocks in a step with activation_checkpointing"
    expect(run.values[0]["calls"][2], what).equals(6)


@check(
    points=3,
    todo=3,
    title="save and load: what follows is the same, to the last bit",
    look_at="components: what is missing? save_checkpoint: make_alike; load_checkpoint: self.steps",
)
def resumes(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"strategy": "ddp", "mixed_precision": "fp16", "ema_decay": 0.9}, "dropout"),
        ({"strategy": "ddp", "compression": "topk"}, "norm"),
        ({"strategy": "fsdp", "ema_decay": 0.9}, "plain"),
    ]
    for options, kind in cases:
        batches = batches_of(2, 6, 6)
        # an overflow in step 3 halves the loss scale; steps 2 and 4 are saved, step 2 as the best one
        planted = [3] if "mixed_precision" in options else []
        first = [Args(options, weights_of(), own, kind, planted, {}, saves=[2, 4], best=[2]) for own in batches]
        whole = ranks(2).call(submission.used_by(stepped), first)
        what = ", ".join(f"{name}={value}" for name, value in options.items())
        for which, step in (("latest", 4), ("best", 2))[: 2 if kind == "norm" else 1]:
            ranks.renew()
            saved = [value["saved"] for value in whole.values]
            rest = [of_rank[step:] for of_rank in batches]
            again = [
                Args(options, weights_of(), own, kind, [], mine, which) for own, mine in zip(rest, saved, strict=True)
            ]
            run = ranks(2).call(submission.used_by(stepped), again)
            loaded = [value["loaded"] for value in run.values]
            expect(loaded, f"{what}: step that load_checkpoint(best={which == 'best'}) returns").equals([step] * 2)
            for rank, (seen, right) in enumerate(zip(run.values, whole.values, strict=True)):
                for name in ("losses", "scales", "weights", "averages") if which == "latest" else ():
                    text = f"{what}: {name} of rank {rank} after loading at step 4"
                    hint = f"saved: {', '.join(right['names'])}"
                    expect(seen[name], text, look_at=hint).equals(right[name][step:])


@check(
    points=2,
    todo=3,
    title="get_performance_metrics: means over ranks, then their ratios",
    look_at="get_performance_metrics: one collective; all of a step's time",
)
def performance(submission: Submission, ranks: Ranks) -> None:
    batches = batches_of(2, 4, 6)
    slow = [work("busy", 0.01 * (1 + rank)) for rank in range(2)]
    given = [
        Args({"strategy": "ddp"}, weights_of(), own, mark=work("mark", 1e-9), busy=busy, flops=1000.0, measures=True)
        for own, busy in zip(batches, slow, strict=True)
    ]
    run = ranks(2).call(submission.used_by(stepped), given)
    if run.trace.clock != "modelled":
        raise NotMeasurable("times are checked on virtual ranks, where they are exact")
    first, second = (value["metrics"] for value in run.values)
    expect(second, "figures of rank 1, compared with rank 0's").equals(first)
    times = torch.tensor([value["times"][1:] for value in run.values], dtype=torch.float64)
    compute, waiting = times.mean((0, 1)).tolist()
    for name, wanted in (
        ("samples_per_second_per_gpu", 6 / (compute + waiting)),
        ("communication_overhead_percent", 100 * waiting / (compute + waiting)),
    ):
        what = f"{name}: 6 samples, {compute:.4g} s of compute and {waiting:.4g} s of waiting are the ranks' means"
        expect([torch.tensor(first.get(name, -1.0))], what).close_to([torch.tensor(wanted)], rel=1e-3)
    expect(len(messages(run, 0, 4)), "collectives of get_performance_metrics").equals(1)


@check(points=2, todo=4, title="learning_rate_at: warm-up and cosine", look_at="learning_rate_at")
def learning_rates(submission: Submission, ranks: Ranks) -> None:
    # 2 ranks with 8 samples each: 12 epochs of 2 steps, with 4 of warm-up
    run = ranks(2).call(submission.used_by(rates), [Args(4, 12, 2.0, 16, 3.2)] * 2)
    peak = 3.2 * 8 / 256
    shares = {0: 0.2, 1: 0.4, 3: 0.8, 4: 1.0, 9: 0.853553390593, 14: 0.5, 24: 0.0}
    what = f"learning rates of steps {', '.join(map(str, shares))} of 24, 4 of warm-up, peak {peak:.4g}"
    seen = [torch.tensor([value[step] for step in shares], dtype=torch.float64) for value in run.values]
    expect(seen, what).close_to([peak * torch.tensor([*shares.values()], dtype=torch.float64)] * 2, rel=1e-6)


def right_sums(weights: Sequence[Tensor], images: Tensor, labels: Tensor) -> list[float]:
    """Return the sums over all test images, by one process."""
    with torch.no_grad():
        outputs = net_of(weights)(images)
    ranked = outputs.argsort(1, descending=True)
    places = (ranked == labels[:, None]).nonzero()[:, 1]
    loss = torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
    return [float(loss), float((places == 0).sum()), float((places < 5).sum()), float(len(labels))]


@check(points=2, todo=4, title="count_hits: each test image once", look_at="count_hits: images that do not count; topk")
def counted(submission: Submission, ranks: Ranks) -> None:
    for strategy, count in (("ddp", 11), ("fsdp", 7)):
        images, labels = samples(count, 5)
        given = [Args({"strategy": strategy}, weights_of(), images, labels, 2) for _ in range(3)]
        run = ranks(3).call(submission.used_by(tested), given)
        seen = torch.tensor(run.values, dtype=torch.float64).sum(0)
        wanted = torch.tensor(right_sums(weights_of(), images, labels), dtype=torch.float64)
        for place, name in enumerate(("loss", "hits of the first class", "hits of the first five", "images")):
            what = f"{strategy}: sum of {name}, of 3 ranks together, {count} test images in batches of 2"
            expect([seen[place]], what).close_to([wanted[place]], rel=1e-5)


@check(
    points=3,
    todo=4,
    title="fit: an interrupted training goes on as if nothing had happened",
    look_at="fit: the order of learning rate, step and save_if_due; what is done at the end of an epoch",
)
def fits(submission: Submission, ranks: Ranks) -> None:
    images, labels = samples(22, 9)
    plan: dict[str, Any] = {
        "epochs": 3, "batch_size": 4, "seed": 3, "kind": "dropout", "due": [2, 5], "stops": 0, "saved": None,
    }  # fmt: skip
    options = {"strategy": "ddp", "ema_decay": 0.9}
    function = submission.used_by(fitted)

    def launch(**changes: Any) -> Run:
        saved = changes.pop("saved", [None, None])
        each = [Args(options, weights_of(), images, labels, {**plan, **changes, "saved": entry}) for entry in saved]
        return ranks(2).call(function, each)

    whole = launch()
    expect([len(value["steps"]) for value in whole.values], "steps of 3 epochs of 11 samples a rank").equals([9, 9])
    expect([value["report"].get("step") for value in whole.values], "step in the report").equals([9, 9])
    ranks.renew()
    cut = launch(stops=6)
    saved_steps = [value["saved"].get("latest", [0])[0] for value in cut.values]
    expect(saved_steps, "step of the last checkpoint, due after 2 and 5, stopped in step 6").equals([5, 5])
    ranks.renew()
    again = launch(saved=[value["saved"] for value in cut.values])
    for rank, (seen, right) in enumerate(zip(again.values, whole.values, strict=True)):
        what = f"stopped in step 6, resumed after step 5, rank {rank}"
        for place, name in ((1, "learning rates"), (2, "labels of the batches"), (0, "losses")):
            right_ones = [entry[place] for entry in right["steps"][5:]]
            expect([entry[place] for entry in seen["steps"]], f"{what}: {name}").equals(right_ones)
        expect(seen["weights"], f"{what}: weights in the end").equals(right["weights"])
        expect(seen["report"], f"{what}: report of the last epoch").equals(right["report"])


HINTS = {
    1: [
        "How many bytes does one parameter take on each GPU: with DDP, where a bucket holds each gradient a second "
        "time? And in shards?",
        "`zero.estimate_memory` at stage 0 with `(4, 8, optimizer_bytes)`, and at stage 3 with `(4, 4, "
        "optimizer_bytes)`, to which three units come. With offload only the units are left on the GPU. Activations "
        "come to each of the three.",
        "`whole = zero.estimate_memory(num_parameters, num_gpus, 0, (4, 8, optimizer_bytes))['zero_gb']`, `shards` the "
        "same with 3 and `(4, 4, optimizer_bytes)`. If `whole + activation_gb <= memory_gb`: "
        "`given.Choice('ddp', False)`; then `shards + 3 * unit_gb`, then `3 * unit_gb` alone.",
    ],
    2: [
        "A microbatch of 2 of 7 samples counts 2/7, in the gradient and in the loss. Which microbatches send nothing? "
        "In `update`: what does an overflow leave out, and which norm is that of the whole model if each rank has a "
        "shard?",
        "`self.no_sync(True)` around all microbatches but the last; the backward pass may be outside. "
        "`self.window.backward(scaled, samples=share)`, then `self.window.step()`. `update`: `unscale_` says whether "
        "there was an overflow; `scaler.update` hears it in any case; clipping comes after unscaling.",
        "`with self.no_sync(number < len(microbatches)), self.autocast(): mean = self.loss_fn(self.model(inputs), "
        "targets)`, `self.window.backward(self.scaler.scale(mean) if self.scaler else mean, samples=share)`, `loss += "
        "share * mean.detach()`. FSDP: `self.model.clip_grad_norm_(self.clip_norm)`; DDP: "
        "`nn.utils.clip_grad_norm_(parameters, self.clip_norm)`.",
    ],
    3: [
        "Adam's moments, the loss scale, the average, the position in the data: which of them would begin anew? Which "
        "tensors are each rank's own until `make_alike`? How long does a step take, with all of its parts?",
        "`components`: a dict of model, optimizer, scaler and average, without those that are None, and `self.extra`. "
        "`save_checkpoint` passes `{'is_best': float(is_best)}` as metrics. `load_...` returns None if there is "
        "nothing. Figures: `process_group.all_reduce_metrics(self.totals.of_a_step())`, then divide.",
        "`parts = {'model': self.model, 'optimizer': self.optimizer, 'scaler': self.scaler, 'average': self.average}`; "
        "`{name: part for name, part in parts.items() if part is not None} | self.extra`. `self.steps = "
        "load(self.components()) or 0`. `seconds` is the sum of the three mean times; `means['samples'] / seconds` and "
        "`100 * means['communication_time'] / seconds`.",
    ],
    4: [
        "Step 0 must not have a learning rate of 0. Which outputs belong to images that only fill a batch? What is the "
        "number of the next epoch after resuming in the middle of one?",
        "Up: `(step + 1) / (warmup_steps + 1)` of the peak. Down: half a cosine over the steps that are left. In "
        "`count_hits` keep `[counts]` of outputs and labels. `fit`: for each epoch from `self.progress.epoch` all of "
        "`self.training_batches(epoch)`, then test, add up over the ranks, `self.end_epoch`.",
        "`done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)`, `self.peak_learning_rate * (1 + "
        "math.cos(math.pi * done)) / 2`. `hits = outputs.topk(5).indices == labels[:, None]`, `hits[:, 0].sum()`, "
        "`hits.sum()`. `with self.testing(): sums = self.count_hits()`, `dist.all_reduce(sums)`, `report = "
        "self.end_epoch(sums)`.",
    ],
}
