"""Hidden rubric of image_classification: 25 points, 12 for the strategy and steps, 13 for the training around them.

The judge trains the same small nets in one process, in float64, so it knows every weight. Checkpoints are kept in the
ranks' memory and go through the judge to the ranks that resume. Digits are counted in steps and in hits, which the
judge finds by itself with the weights that come back; no check measures time other than the virtual clock's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, work
from labkit.clusters import Run
from labkit.course.phase4_production.image_classification.scenarios import (
    CLASSES,
    FEATURES,
    INIT_SCALE,
    chosen,
    digits_classified,
    digits_model,
    expected,
    fitted,
    net_of,
    rates,
    shapes,
    stepped,
    tested,
)
from labkit.data import digits
from labkit.trace import Kind

FORBIDDEN = {
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.utils.data.DistributedSampler",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
SEEDS = (1, 2, 3, 5)
"""Of trainings of the digits that reach more than 97 % by a margin."""


# What the judge makes of it -------------------------------------------------------------------------------------------


def drawn_weights(draw: Draw) -> list[Tensor]:
    return [torch.randn(shape, generator=generator(draw), dtype=torch.float64) / 2 for shape in shapes()]


def generator(draw: Draw) -> torch.Generator:
    return torch.Generator().manual_seed(draw.randrange(1 << 40))


def samples(draw: Draw, count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, FEATURES, generator=generator(draw), dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (count,), generator=generator(draw))


def drawn_batches(draw: Draw, world_size: int, steps: int, count: int) -> list[list[list[Tensor]]]:
    return [[[*samples(draw, count)] for _ in range(steps)] for _ in range(world_size)]


class Steps:
    """Steps of some ranks, each with its own batches; the weights of rank 0 count."""

    def __init__(
        self, submission: Submission, ranks: Ranks, draw: Draw, world_size: int, steps: int, count: int
    ) -> None:
        self.submission, self.ranks, self.world_size = submission, ranks, world_size
        self.weights, self.batches = drawn_weights(draw), drawn_batches(draw, world_size, steps, count)

    def run(
        self,
        options: dict[str, Any],
        *,
        planted: dict[int, list[int]] | None = None,
        saved: Sequence[Any] | None = None,
        skip: int = 0,
        busy: Sequence[float] = (),
        **more: Any,
    ) -> Run:
        """planted: overflows by rank. saved: of each rank. skip: first steps that are not taken. busy: seconds."""
        given = []
        for rank, own in enumerate(self.batches):
            mine = {"planted": (planted or {}).get(rank, []), "mark": work("mark", 1e-9), **more}
            if saved is not None:
                mine["saved"] = saved[rank]
            if busy:
                mine |= {"busy": work("busy", busy[rank]), "flops": 500.0, "measures": True}
            copies = [[tensor.clone() for tensor in batch] for batch in own[skip:]]
            given.append(Args(options, [one.clone() for one in self.weights], copies, **mine))
        return self.ranks(self.world_size).call(self.submission.used_by(stepped), given)

    def expect(
        self, run: Run, what: str, clip: float | None = None, decay: float | None = None, rel: float = 1e-9
    ) -> None:
        """Expect losses, weights and averages of one process."""
        right = expected(self.weights, self.batches, clip, decay)
        for rank, value in enumerate(run.values):
            losses = torch.tensor([of_ranks[rank] for of_ranks in right["losses"]])
            expect([torch.tensor(value["losses"])], f"{what}: losses of rank {rank}").close_to([losses], rel=1e-6)
            for name in ("weights", "averages") if decay else ("weights",):
                expect(value[name], f"{what}: {name} of rank {rank} after each step").close_to(right[name], rel=1e-9)


def sent(run: Run, rank: int, place: int) -> list[tuple[str, int]]:
    """Return operations and bytes of a rank between two of its marks, those of the step number `place` from 0."""
    marks = [event.start for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == "mark"]
    begin, end = marks[2 * place], marks[2 * place + 1]
    return [(one.operation, one.nbytes) for one in run.trace.collectives(rank) if begin <= one.start < end]


def groups_of(run: Run, rank: int, place: int) -> list[list[list[int]]]:
    """Return the groups of a rank's gathers and scatters in a step, and of its all-reduces."""
    marks = [event.start for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == "mark"]
    found: list[list[list[int]]] = [[], []]
    for event in run.trace.collectives(rank):
        members = sorted(run.trace.members(event))
        kind = found["all_reduce" in event.operation]
        if marks[2 * place] <= event.start < marks[2 * place + 1] and members not in kind:
            kind.append(members)
    return found


# The strategy ---------------------------------------------------------------------------------------------------------


@check(points=2, todo=1, title="strategy 'auto' takes the first that fits", look_at="choose_strategy")
def strategies(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases, wanted = [], []
    for kind in draw.sample(range(8), 8):
        parameters, gpus = draw.randrange(10**8, 10**10), draw.choice([2, 3, 8, 64])
        optimizer, unit = draw.choice([0, 4, 8, 12]), draw.uniform(0.01, 0.03) * parameters / 1e9
        activations = draw.choice([0.0, draw.uniform(1, 9)])
        whole = parameters * (12 + optimizer) / 1e9 + activations
        shards = parameters * (8 + optimizer) / gpus / 1e9 + 3 * unit + activations
        least = 3 * unit + activations
        memory, choice = [
            (whole * 1.01, ["ddp", False]),
            (whole * 0.99 if whole * 0.99 > shards else whole * 1.02, None),
            (shards * 1.01, None),
            (shards * 0.99, None),
            (least * 1.01, None),
            (least * 0.99, ["ValueError", False]),
            (whole * 3, ["ddp", False]),
            ((shards + least) / 2, None),
        ][kind]
        if choice is None:
            fits = [(whole, ["ddp", False]), (shards, ["fsdp", False]), (least, ["fsdp", True])]
            choice = next(one for gb, one in fits if gb <= memory)
        cases.append([float(parameters), float(gpus), memory, activations, float(optimizer), unit])
        wanted.append(choice)
    (found,) = ranks(1).call(submission.used_by(chosen), [Args(cases)]).values
    for case, seen, right in zip(cases, found, wanted, strict=True):
        names = ("parameters", "GPUs", "memory_gb", "activation_gb", "optimizer_bytes", "unit_gb")
        what = ", ".join(f"{value:.4g} {name}" for value, name in zip(case, names, strict=True))
        expect(seen, f"strategy, and whether to offload: {what}").equals(right)


# Steps ----------------------------------------------------------------------------------------------------------------


@check(points=4, todo=2, title="a step is that of one process", look_at="train_step: shares; update: clip, average")
def one_process(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for strategy in ("ddp", "fsdp"):
        clip, decay = draw.uniform(0.05, 0.1), draw.uniform(0.3, 0.9)
        world_size, count = draw.choice([2, 3]), draw.choice([7, 10])
        steps = Steps(submission, ranks, draw, world_size, 3, count)
        options = {
            "strategy": strategy,
            "gradient_accumulation_steps": 3,
            "gradient_clip_val": clip,
            "ema_decay": decay,
        }
        run = steps.run(options)
        steps.expect(run, f"{strategy}, {world_size} ranks, {count} samples in 3 microbatches", clip, decay)


@check(points=2, todo=2, title="each gradient once in a step, or in shards", look_at="wrap; no_sync in train_step")
def traffic(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    steps = Steps(submission, ranks, draw, draw.choice([2, 3]), 3, 8)
    numel = sum(one.numel() for one in steps.weights)
    accumulation = draw.choice([2, 4])
    run = steps.run({"strategy": "ddp", "gradient_accumulation_steps": accumulation})
    steps.expect(run, f"ddp, {accumulation} microbatches")
    for rank in range(steps.world_size):
        seen = sent(run, rank, 2)
        what = f"ddp, {accumulation} microbatches: bytes in a step, {numel} gradients of 8 bytes: {seen}"
        expect(sum(nbytes for _, nbytes in seen), what, unit="bytes").equals(8 * numel)
    run = steps.run({"strategy": "fsdp"})
    steps.expect(run, "fsdp")
    operations = [operation for operation, _ in sent(run, 0, 2)]
    units, what = 4, f"fsdp: operations of a step, with three blocks and the rest: {operations}"
    expect(sum("gather" in one for one in operations), f"{what}: all-gathers").at_least(units)
    expect(sum("scatter" in one for one in operations), f"{what}: reduce-scatters").equals(units)
    expect(sum("all_reduce" in one for one in operations), f"{what}: all-reduces").equals(0)
    steps = Steps(submission, ranks, draw, 4, 3, 8)
    run = steps.run({"strategy": "hybrid", "shard_ranks": 2})
    steps.expect(run, "hybrid, shards on pairs of 4 ranks")
    for rank in range(4):
        groups = groups_of(run, rank, 2)
        pair, alike = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
        what = f"hybrid, rank {rank}: ranks of its all-gathers and reduce-scatters, of its all-reduces"
        expect(groups, what, look_at="wrap: shard_group, replica_group").equals([[pair], [alike]])


@check(points=2, todo=2, title="16 bits: an overflow skips the step on all ranks", look_at="update; autocast")
def precision(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for strategy in ("ddp", "fsdp"):
        steps = Steps(submission, ranks, draw, 2, 4, 6)
        clip = draw.uniform(0.2, 0.4)
        options = {"strategy": strategy, "mixed_precision": "fp16", "gradient_clip_val": clip, "ema_decay": 0.5}
        which = draw.choice([2, 3])
        run = steps.run(options, planted={draw.randrange(2): [which]}, kind="float32")
        for value in run.values:
            what = f"{strategy}, fp16, overflow on one rank in step {which}"
            expect(value["dtypes"], f"{what}: dtypes of outputs").equals(["torch.float16"])
            scales = [INIT_SCALE if step < which else INIT_SCALE / 2 for step in range(1, 5)]
            expect(value["scales"], f"{what}: loss scale after each step").equals(scales)
            for name in ("weights", "averages"):
                before, after = value[name][which - 2], value[name][which - 1]
                expect(after, f"{what}: {name} after it").equals(before)
            taken = [[batch for step, batch in enumerate(own, 1) if step != which] for own in steps.batches]
            right = expected(steps.weights, taken, clip)["weights"][-1]
            expect(value["weights"][-1].float(), f"{what}: weights after step 4").close_to(right.float(), rel=0.004)


@check(points=2, todo=2, title="compression and recomputation", look_at="wrap")
def options_of_a_step(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    steps = Steps(submission, ranks, draw, 2, 3, 6)
    numel = sum(one.numel() for one in steps.weights)
    name, share = draw.choice([("onebit", 0.25), ("int8", 0.3)])
    nbytes = sum(nbytes for _, nbytes in sent(steps.run({"strategy": "ddp", "compression": name}), 0, 2))
    expect(nbytes, f"compression {name}: bytes in a step, {8 * numel} without").at_most(share * 8 * numel)
    expect(nbytes, f"compression {name}: bytes in a step").at_least(numel / 8)
    strategy = draw.choice(["ddp", "fsdp"])
    run = steps.run({"strategy": strategy, "activation_checkpointing": True})
    steps.expect(run, f"{strategy}, activations computed again")
    expect(run.values[0]["calls"][2], f"{strategy}: forward passes of 3 blocks in a step").equals(6)


# Checkpoints ----------------------------------------------------------------------------------------------------------


@check(points=3, todo=3, title="what follows a load is the same to the last bit", look_at="components, make_alike")
def resumes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases: list[tuple[dict[str, Any], str, dict[int, list[int]]]] = [
        ({"strategy": "ddp", "mixed_precision": "fp16", "ema_decay": 0.9}, "dropout", {draw.randrange(2): [2]}),
        ({"strategy": "ddp", "compression": draw.choice(["topk", "onebit"]), "ema_decay": 0.8}, "norm", {}),
        ({"strategy": "fsdp", "ema_decay": 0.9}, "plain", {}),
    ]
    for options, kind, planted in cases:
        steps = Steps(submission, ranks, draw, 2, 5, 6)
        whole = steps.run(options, kind=kind, planted=planted, saved=[{}, {}], saves=[3])
        ranks.renew()
        saved = [value["saved"] for value in whole.values]
        again = steps.run(options, kind=kind, saved=saved, loads="latest", skip=3)
        for rank, (seen, right) in enumerate(zip(again.values, whole.values, strict=True)):
            what = f"{options}, {kind}, saved after step 3, rank {rank}"
            expect(seen["loaded"], f"{what}: step that load_checkpoint returns").equals(3)
            for name in ("losses", "scales", "weights", "averages"):
                expect(seen[name], f"{what}: {name} of the steps after it").equals(right[name][3:])


@check(points=1, todo=3, title="the last best checkpoint", look_at="save_checkpoint: metrics; load_checkpoint: best")
def best(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    steps = Steps(submission, ranks, draw, 2, 5, 6)
    step = draw.choice([2, 3])
    whole = steps.run({"strategy": "ddp"}, saved=[{}, {}], saves=[1, 2, 3, 4], best=[1, step])
    ranks.renew()
    saved = [value["saved"] for value in whole.values]
    run = steps.run({"strategy": "ddp"}, saved=saved, loads="best", skip=step)
    for seen, right in zip(run.values, whole.values, strict=True):
        expect(seen["loaded"], f"step of the best, 1 and {step} were, up to 4").equals(step)
        expect(seen["weights"][0], f"weights a step after the best one, step {step}").close_to(
            right["weights"][step], rel=1e-9
        )


@check(points=2, todo=3, title="performance metrics", look_at="get_performance_metrics: means before ratios")
def performance(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    steps = Steps(submission, ranks, draw, 3, 4, draw.choice([5, 8]))
    busy = draw.sample([0.01, 0.015, 0.04], 3)
    run = steps.run({"strategy": "ddp"}, busy=busy)
    times = torch.tensor([value["times"][1:] for value in run.values], dtype=torch.float64)
    compute, waiting = times.mean((0, 1)).tolist()
    count = len(steps.batches[0][0][1])
    for value in run.values:
        what = f"{count} samples a step, {compute:.5g} s of compute, {waiting:.5g} s of waiting, means of 3 ranks"
        for name, right in (
            ("samples_per_second_per_gpu", count / (compute + waiting)),
            ("communication_overhead_percent", 100 * waiting / (compute + waiting)),
        ):
            seen = torch.tensor(float(value["metrics"].get(name, -1)), dtype=torch.float64)
            expect([seen], f"{name}: {what}").close_to([torch.tensor(right, dtype=torch.float64)], rel=1e-3)
    expect(len(sent(run, 0, 4)), "collectives of get_performance_metrics").equals(1)
    slowest = max(range(3), key=lambda rank: busy[rank])
    expect(run.values[slowest]["times"][2][1], "seconds in which the slowest rank waits in a step").at_most(1e-3)


# The recipe -----------------------------------------------------------------------------------------------------------


@check(points=1, todo=4, title="warm-up and cosine", look_at="learning_rate_at")
def learning_rates(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, batch = draw.choice([1, 2]), draw.choice([2, 3])
    epochs, warmup, rate = draw.randrange(5, 9), draw.choice([0.5, 1.0, 2.0]), draw.uniform(0.1, 2)
    run = ranks(world_size).call(submission.used_by(rates), [Args(batch, epochs, warmup, 24, rate)] * world_size)
    each = 24 // world_size // batch
    total, first, peak = epochs * each, round(warmup * each), rate * batch * world_size / 256
    right = [
        peak * (step + 1) / (first + 1)
        if step < first
        else peak * (1 + math.cos(math.pi * (step - first) / (total - first))) / 2
        for step in range(total + 1)
    ]
    for value in run.values:
        what = f"learning rates of {total} steps, {first} of warm-up, peak {peak:.5g}"
        seen = torch.tensor(value, dtype=torch.float64)
        expect(seen, what).close_to(torch.tensor(right, dtype=torch.float64), rel=1e-6)


@check(points=2, todo=4, title="each test image counts once", look_at="count_hits")
def counted(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, count, size = draw.choice([(2, 7, 2), (3, 10, 3), (3, 13, 2), (2, 9, 3)])
    weights, (images, labels) = drawn_weights(draw), samples(draw, count)
    given = [Args({"strategy": "fsdp"}, weights, images, labels, size)] * world_size
    run = ranks(world_size).call(submission.used_by(tested), given)
    outputs = net_of(weights)(images).detach()
    places = (outputs.argsort(1, descending=True) == labels[:, None]).nonzero()[:, 1]
    loss = torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
    right = [float(loss), float((places == 0).sum()), float((places < 5).sum()), float(count)]
    seen = torch.tensor(run.values, dtype=torch.float64).sum(0)
    what = f"fsdp: loss, hits, hits among five, images: sums over {world_size} ranks, {count} images"
    expect(seen, what).close_to(torch.tensor(right, dtype=torch.float64), rel=1e-5)


@check(points=2, todo=4, title="killed within an epoch, resumed exactly", look_at="fit: save_if_due, progress.epoch")
def fits(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    weights, (images, labels) = drawn_weights(draw), samples(draw, 22)
    plan: dict[str, Any] = {"epochs": 3, "batch_size": 4, "seed": draw.randrange(1000), "kind": "dropout", "stops": 0}
    due = draw.choice([4, 5])
    options = {"strategy": draw.choice(["ddp", "fsdp"]), "ema_decay": 0.9}

    def launch(saved: Sequence[Any] = (None, None), **changes: Any) -> Run:
        own = [{**plan, "due": [due], **changes, "saved": one} for one in saved]
        given = [Args(options, [one.clone() for one in weights], images.clone(), labels.clone(), one) for one in own]
        return ranks(2).call(submission.used_by(fitted), given)

    whole = launch()
    expect([len(value["steps"]) for value in whole.values], "steps of 3 epochs").equals([9, 9])
    ranks.renew()
    cut = launch(stops=6)
    what = f"{options['strategy']}, killed in step 6"
    found = [value["saved"].get("latest", [0])[0] for value in cut.values]
    text = f"{what}: step of the last checkpoint, due after {due}, and after each epoch of 3"
    expect(found, text).equals([due] * 2)
    ranks.renew()
    again = launch([value["saved"] for value in cut.values])
    for rank, (seen, right) in enumerate(zip(again.values, whole.values, strict=True)):
        text = f"{what}, rank {rank}: loss, learning rate and labels of the steps that follow"
        expect(seen["steps"], text).equals(right["steps"][due:])
        expect(seen["weights"], f"{what}, rank {rank}: weights in the end").equals(right["weights"])
        expect(seen["report"], f"{what}, rank {rank}: report of the last epoch").equals(right["report"])


@check(points=2, todo=4, title="97 % of the digits on 2 ranks", look_at="fit, and all that it calls")
def classifies_digits(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    seed, epochs, batch = draw.choice(SEEDS), 5, 64
    run = ranks(2).call(submission.used_by(digits_classified), [Args(epochs, batch, seed)] * 2)
    images, labels = digits("test").tensors
    model = digits_model()
    for rank, value in enumerate(run.values):
        model.load_state_dict(value["state"])
        model.eval()
        with torch.no_grad():
            hits_found = int((model(images).argmax(1) == labels).sum())
        what = f"digits of 360 that the averaged weights of rank {rank} classify, after {epochs} epochs"
        expect(hits_found, what).at_least(0.97 * 360)
        expect(round(360 * value["top1"]), f"hits by the report of rank {rank}").is_one_of(
            hits_found - 1, hits_found, hits_found + 1
        )
        expect(value["step"], "steps").equals(epochs * math.ceil(718 / batch))
