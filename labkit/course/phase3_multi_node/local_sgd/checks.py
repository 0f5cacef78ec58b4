"""Visible checks and hints of local_sgd: small runs, so that a wrong number can be traced by hand.

Three ranks train one weight, which starts at 0, with learning rate 1. Rank r's gradient is -3 * 10**r in every step, or
-6 * 10**r where samples differ. So a mean over the ranks has a digit for each of them, the last one for rank 0: 222
after two steps, and 231 if the ranks had 1, 3 and 2 samples. 111 where 222 is expected is half a step; 666 is a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.clusters.virtual import slow
from labkit.course.phase3_multi_node.local_sgd.scenarios import averaged, divided, paced, recorded
from labkit.trace import Kind

# What runs on the ranks -----------------------------------------------------------------------------------------------


def trained(
    gradient: float,
    samples: list[int],
    kind: str = "local",
    period: int = 1,
    warmup: int = 0,
    outer: list[float] | None = None,
    adam: bool = False,
    dtype: str = "float32",
    start: float = 0.0,
    twice: bool = False,
    group: Any = None,
) -> list[float]:
    """On a rank: take a step for each of `samples`, and synchronize; return the weight after each, and at the end.

    outer: learning rate and momentum of DiLoCo's outer optimizer. twice: synchronize a second time.
    """
    from functools import partial

    import torch
    import torch.distributed as dist

    from labkit.exercises import local_sgd

    # only the first rank's start counts
    weight = torch.full((5,), start + 1e6 * dist.get_rank(group), dtype=getattr(torch, dtype), requires_grad=True)
    optimizer: Any = torch.optim.Adam([weight], lr=0.5) if adam else torch.optim.SGD([weight], lr=1.0)
    if kind == "diloco":
        rate, momentum = outer or [1.0, 0.0]
        make = partial(torch.optim.SGD, lr=rate, momentum=momentum, nesterov=momentum > 0)
        trainer = local_sgd.DiLoCo(optimizer, make, period, group)
    else:
        trainer = local_sgd.LocalSGD(optimizer, period, warmup, group)
    seen = []
    for step, count in enumerate(samples):
        scale = 1.0 + step % 3 if adam else 1.0
        # the gradient of a mean over no samples
        weight.grad = torch.full_like(weight, scale * gradient if count else float("nan"))
        trainer.step(count)
        seen.append(weight[-1].item())
    for _ in range(1 + twice):
        trainer.synchronize()
    return [*seen, weight[0].item()]


# What the checks read -------------------------------------------------------------------------------------------------


def weights(
    submission: Submission, ranks: Ranks, samples: Sequence[Sequence[int]], times: float = 3.0, **options: Any
) -> Run:
    """Train on three ranks; rank r's gradient is -times * 10**r. samples: of each step of each rank."""
    given = [Args(-times * 10.0**rank, list(counts), **options) for rank, counts in enumerate(samples)]
    return ranks(3).call(submission.used_by(trained), given)


def first(run: Run) -> list[Any]:
    """Return the first tensor of each rank."""
    return [value[0] for value in run.values]


def all_reduces(run: Run, rank: int = 0) -> list[int]:
    """Return the bytes of a rank's collectives, without the broadcasts at the start."""
    return [e.nbytes for e in run.trace.collectives(rank) if e.operation != "broadcast"]


# Checks ---------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=1,
    title="weighted_average: each rank counts by its weight",
    look_at="weighted_average: what is multiplied by the weight, and what the sum is divided by",
)
def average(submission: Submission, ranks: Ranks) -> None:
    given = [Args([torch.full((2, 3), 6.0 * 10**rank)], weight) for rank, weight in enumerate((1, 3, 2))]
    run = ranks(3).call(submission.used_by(averaged), given)
    what = "mean of 6, 60 and 600 on three ranks with weights 1, 3 and 2: a digit for each rank's weight"
    expect(first(run), what).equals([torch.full((2, 3), 231.0)] * 3)
    mixed = [torch.tensor(4.0, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bfloat16).mT]
    given = [Args([x * (1 + 3 * rank) for x in mixed], 0.25 * (1 + rank)) for rank in range(2)]
    run = ranks(2).call(submission.used_by(averaged), given)
    what = "mean of 4 and 16, and of 1 and 4, with weights 0.25 and 0.5, in float64 and bfloat16"
    for number, tensor in enumerate(mixed):
        expect([value[number] for value in run.values], what).equals([tensor * 3] * 2)
    for gone in (1, 0):
        given = [Args([torch.tensor([float("nan") if rank == gone else 5.0])], int(rank != gone)) for rank in range(2)]
        run = ranks(2).call(submission.used_by(averaged), given)
        hint = "0 times NaN is NaN: a rank with weight 0 sends zeros"
        expect(first(run), "mean of 5 and, with weight 0, NaN", look_at=hint).equals([torch.tensor([5.0])] * 2)
    run = ranks(2).call(submission.used_by(averaged), [Args([torch.tensor([7.0 + rank])], 0) for rank in range(2)])
    hint = "if all weights together are 0, `torch.where(total > 0, ...)` keeps the tensor"
    expect(first(run), "7 and 8 with weights 0", look_at=hint).equals([torch.tensor([7.0]), torch.tensor([8.0])])
    group = group_of([0, 2])
    pair: list[Any] = [Args([torch.tensor([4.0 * rank])], 1, group) if rank != 1 else None for rank in range(3)]
    run = ranks(3).call(submission.used_by(averaged), pair)
    hint = "the all-reduce is that of `group`"
    what = "mean of 0 and 8 on ranks 0 and 2, a group"
    expect(run.values[0][0], what, look_at=hint).equals(torch.tensor([4.0]))
    expect(run.values[2][0], what, look_at=hint).equals(torch.tensor([4.0]))


@check(
    points=1,
    todo=1,
    title="weighted_average: one all-reduce for everything",
    look_at="weighted_average: the weight travels as the last element of `message.flat`",
)
def one_message(submission: Submission, ranks: Ranks) -> None:
    given = [Args([torch.ones(10), torch.ones(2, 3)], 1 + rank) for rank in range(2)]
    run = ranks(2).call(submission.used_by(averaged), given)
    seen = [(e.operation, e.nbytes) for e in run.trace.collectives(0)]
    expect(seen, "collectives, with bytes: 16 float32 and the weight").equals([("all_reduce", 68)])


@check(
    points=3,
    todo=2,
    title="balance_batches: no other split is faster",
    look_at="balance_batches: who gets what is left after rounding down",
)
def split(submission: Submission, ranks: Ranks) -> None:
    cases: list[list[Any]] = [
        [[100.0, 50.0, 50.0], 12],
        [[1.0, 1.0, 1.0], 8],
        [[3.0, 2.0, 2.0], 10],
        [[10.0, 1.0, 1.0], 9],
        [[0.31, 2.7, 1.9], 13],
        [[5.0], 4],
        [[2.0, 1.0], 0],
    ]
    (results,) = ranks(1).call(submission.used_by(divided), [Args(cases)]).values
    for (speeds, batch), shares in zip(cases, results, strict=True):
        case = f"{batch} samples for speeds {', '.join(map(str, speeds))}"
        expect(len(shares), f"{case}: number of shares").equals(len(speeds))
        hint = "all samples are given to a rank, none twice"
        expect(sum(shares), f"{case}: sum of the shares {shares}", look_at=hint).equals(batch)
        expect(min(shares), f"{case}: smallest of the shares {shares}").at_least(0)
        ways = [[*way, batch - sum(way)] for way in itertools.product(range(batch + 1), repeat=len(speeds) - 1)]
        slowest = [max(n / speed for n, speed in zip(way, speeds, strict=True)) for way in ways if way[-1] >= 0]
        taken = max(n / speed for n, speed in zip(shares, speeds, strict=True))
        expect(taken, f"{case}: time of the slowest rank with shares {shares}", unit="seconds").at_most(
            min(slowest) * (1 + 1e-9)
        )


@check(
    points=2,
    todo=2,
    title="rebalance: speeds since the last time",
    look_at="rebalance: samples over seconds, both of several steps; what it leaves for the next time",
)
def speeds(submission: Submission, ranks: Ranks) -> None:
    records = [[[[2, 1.0], [4, 1.0]], [[0, 0.0]], [[8, 1.0]]], [[[10, 0.5]], [[5, 1.0]], []]]
    run = ranks(2).call(submission.used_by(recorded), [Args(own) for own in records])
    wanted = [[3.0, 20.0], [3.0, 5.0], [8.0, 5.0]]
    what = (
        "speeds of ranks 0 and 1, three times: 6 samples in 2 s, then none, then 8 in 1 s; 10 in 0.5 s, 5 in 1 s, none"
    )
    expect(run.values, what).equals([wanted] * 2)
    seen = [(e.operation, e.nbytes) for e in run.trace.collectives(0)]
    expect(seen, "collectives, with bytes").equals([("all_gather", 8)] * 3)


@check(
    points=2,
    todo=2,
    title="ranks of different speeds, and a straggler, end their steps together",
    look_at="rebalance and balance_batches: whose speed is whose",
)
def together(submission: Submission, ranks: Ranks) -> None:
    batches, mark = [*[120] * 5, 31], work("mark", 1e-9)
    pace = [0.001, 0.002, 0.004]
    # in the third batch the fast rank becomes a straggler, which takes four times as long
    some = ranks(3, faults=[slow(0, factor=4, at=0.25)])
    run = some.call(submission.used_by(paced), [Args(batches, work("sample", s), mark) for s in pace])
    if run.trace.clock != "modelled":
        raise NotMeasurable("speeds are checked on virtual ranks: their samples take exact times")
    for number, batch in enumerate(batches):
        slices = [value[number] for value in run.values]
        ends = [0, *(end for _, end in slices)]
        hint = "own: given, but with your `balance_batches` and `speeds`, which are the same on every rank"
        what = f"slices of batch {number}, of {batch} samples, one after the other"
        expect(slices, what, look_at=hint).equals([list(pair) for pair in itertools.pairwise(ends)])
        expect(ends[-1], f"end of the last slice of batch {number}").equals(batch)
    for number, factor in ((1, 1), (4, 4)):
        real = [pace[0] * factor, *pace[1:]]
        best = batches[number] / sum(1 / seconds for seconds in real)
        marks = [sorted(e for e in run.trace.of(r, Kind.COMPUTE) if e.operation == "mark") for r in range(3)]
        took = [own[2 * number + 1].start - own[2 * number].end for own in marks]
        what = f"seconds of the slowest rank for batch {number}; {best:.3f} s if samples could be cut"
        expect(max(took), what, unit="seconds").at_most(best * 1.05)


@check(
    points=3,
    todo=3,
    title="LocalSGD: local steps, and the mean after each period",
    look_at="step: who takes a step, and when `synchronize` is called",
)
def local_steps(submission: Submission, ranks: Ranks) -> None:
    run = weights(submission, ranks, [[1] * 5] * 3, period=2)
    for rank in range(3):
        own = 3.0 * 10**rank
        what = f"weights of rank {rank} with period 2, after steps 1 to 5, and after `synchronize`"
        expect(run.values[rank], what).equals([own, 222.0, 222 + own, 444.0, 444 + own, 555.0])
    run = weights(submission, ranks, [[1] * 4] * 3, period=2, warmup=1)
    what = "weights of rank 0 with period 2 after one warm-up step, which is data parallel"
    expect(run.values[0], what).equals([111.0, 114.0, 333.0, 336.0, 444.0])
    pair: list[Any] = [Args(-2.0 * 10**rank, [1] * 2, period=2, group=group_of([0, 2])) for rank in range(3)]
    pair[1] = None
    run = ranks(3).call(submission.used_by(trained), pair)
    hint = "averages are taken over `self.group`"
    expect(run.values[0], "weights of rank 0 in a group with rank 2", look_at=hint).equals([2.0, 202.0, 202.0])


@check(
    points=2,
    todo=3,
    title="LocalSGD: one all-reduce for each period",
    look_at="step and synchronize: `local_steps`, before and after",
)
def rounds(submission: Submission, ranks: Ranks) -> None:
    for steps, period, warmup, wanted in ((7, 3, 0, 3), (6, 3, 0, 2), (5, 2, 2, 4), (4, 1, 0, 4)):
        run = weights(submission, ranks, [[1] * steps] * 3, period=period, warmup=warmup, twice=True)
        what = f"bytes of each all-reduce in {steps} steps with period {period} after {warmup} of warm-up, and two "
        hint = "`synchronize` sends nothing if there was no local step since the last time"
        expect(all_reduces(run), f"{what}calls of `synchronize`; a weight is 5 float32", look_at=hint).equals(
            [24] * wanted
        )


@check(
    points=3,
    todo=3,
    title="LocalSGD: with period 1 it is one process, also with Adam",
    look_at="step: which average makes Adam's step that of one process: of gradients, or of weights?",
)
def one_process(submission: Submission, ranks: Ranks) -> None:
    samples = [[1, 2, 1, 0], [3, 1, 1, 1], [2, 0, 1, 2]]
    for adam, warmup, period in ((False, 0, 1), (True, 0, 1), (True, 4, 5)):
        run = weights(submission, ranks, samples, times=0.6, period=period, warmup=warmup, adam=adam)
        weight = torch.zeros(1, requires_grad=True)
        optimizer: Any = torch.optim.Adam([weight], lr=0.5) if adam else torch.optim.SGD([weight], lr=1.0)
        wanted = []
        for step in range(4):
            counts = [own[step] for own in samples]
            mean = sum(n * -0.6 * 10**rank for rank, n in enumerate(counts)) / sum(counts)
            weight.grad = torch.tensor([(1.0 + step % 3 if adam else 1.0) * mean])
            optimizer.step()
            wanted.append(weight.item())
        name = f"{'Adam' if adam else 'SGD'}, period {period}, {warmup} steps of warm-up"
        what = f"weights after each of 4 steps, and at the end: {name}; samples of each step differ"
        seen = [torch.tensor(value) for value in run.values]
        expect(seen, what).close_to([torch.tensor([*wanted, wanted[-1]])] * 3, rel=1e-5)


@check(
    points=2,
    todo=3,
    title="LocalSGD: ranks count by their samples, also in the last, short period",
    look_at="`samples`: of all local steps since the weights were equal",
)
def unequal(submission: Submission, ranks: Ranks) -> None:
    run = weights(submission, ranks, [[1], [3], [2]], times=6, period=2)
    what = "weights after one step with 1, 3 and 2 samples, the last one, and `synchronize`"
    expect([value[-1] for value in run.values], what).equals([231.0] * 3)
    run = weights(submission, ranks, [[1, 0, 2], [0, 3, 1], [1, 1, 3]], times=6, period=2)
    # rank r has gone 6, 6 and 12 times 10**r in two steps, with 1, 3 and 2 samples
    hint = "a rank without samples takes no step; its samples of both steps count"
    expect([value[1] for value in run.values], "weights after a period of two steps", look_at=hint).equals([431.0] * 3)
    what = "weights after a third step with 2, 1 and 3 samples, and `synchronize`"
    hint = "after a synchronization a rank's `samples` begin at 0"
    expect([value[-1] for value in run.values], what, look_at=hint).equals([431.0 + 312] * 3)
    run = weights(submission, ranks, [[0, 1], [1, 1], [1, 1]], times=6, period=1)
    hint = "gradients are weighted with this step's samples; those of none are NaN"
    expect(run.values[0][:2], "weights with period 1; rank 0 has no sample at first", look_at=hint).equals(
        [330.0, 552.0]
    )


@check(
    points=2,
    todo=4,
    title="DiLoCo: a step of the outer optimizer, from where all ranks began",
    look_at="DiLoCo.average: the sign of the pseudo-gradient, and where the ranks continue",
)
def outer_steps(submission: Submission, ranks: Ranks) -> None:
    run = weights(submission, ranks, [[1] * 4] * 3, kind="diloco", period=2)
    hint = "with outer SGD of learning rate 1 it is local SGD"
    expect(run.values[0], "weights of rank 0, outer SGD, period 2", look_at=hint).equals(
        [3.0, 222.0, 225.0, 444.0, 444.0]
    )
    run = weights(submission, ranks, [[1] * 4] * 3, kind="diloco", period=1, outer=[0.5, 0.0])
    what = "weights of rank 0, outer learning rate 0.5, period 1: half of each way"
    expect(run.values[0], what).equals([55.5, 111.0, 166.5, 222.0, 222.0])
    run = weights(submission, ranks, [[1] * 3] * 3, kind="diloco", period=1, outer=[1.0, 0.5])
    # Nesterov: velocity v = 0.5 v + 111, and a step of 111 + 0.5 v
    hint = "the outer optimizer, with its momentum, lives as long as the trainer"
    wanted = [166.5, 360.75, 568.875, 568.875]
    expect(run.values[0], "weights with outer Nesterov momentum 0.5, learning rate 1", look_at=hint).equals(wanted)


@check(
    points=2,
    todo=4,
    title="DiLoCo: one all-reduce for each period; samples and digits count",
    look_at="DiLoCo.average: one `weighted_average`, with `self.samples`",
)
def outer_rounds(submission: Submission, ranks: Ranks) -> None:
    run = weights(submission, ranks, [[1, 0, 2], [0, 3, 1], [1, 1, 3]], times=6, kind="diloco", period=2)
    expect([value[1] for value in run.values], "weights after a period, samples differ").equals([431.0] * 3)
    expect([value[-1] for value in run.values], "weights after a short period, samples differ").equals([743.0] * 3)
    expect(all_reduces(run), "bytes of each all-reduce in 3 steps with period 2, and `synchronize`").equals([24] * 2)
    # in bfloat16 the next number after 256 is 258; eight outer steps go 1.6 from there, of 4
    options: dict[str, Any] = {"kind": "diloco", "outer": [0.0625, 0.0], "dtype": "bfloat16", "start": 256.0}
    run = ranks(2).call(submission.used_by(trained), [Args(-4.0, [1] * 8, **options)] * 2)
    hint = "anchors are float32, so that small steps add up; parameters are copies of them"
    expect(run.values[0][-1], "bfloat16 weight after 8 outer steps of 0.25 and less from 256", look_at=hint).equals(
        258.0
    )


HINTS = {
    1: [
        "Three ranks with values 6, 60 and 600 and weights 1, 3 and 2: the mean is (1 * 6 + 3 * 60 + 2 * 600) / 6. "
        "Which two sums over the ranks do you need? Both fit into one message.",
        "Multiply all of `message.flat` by the weight: then its last element, which was 1, is the weight itself. "
        "After the all-reduce the last element is the sum of the weights, and each view divided by it is a mean. A "
        "weight of 0 needs `zero_()`, since 0 times NaN is NaN.",
        "`message.flat.mul_(weight)` if there is weight, else `message.flat.zero_()`; "
        "`dist.all_reduce(message.flat, group=group)`; `total = message.flat[-1].clone()`; "
        "`message.flat.div_(total)`; and for each pair of `message.tensors` and `message.views()`: "
        "`torch.where(total > 0, mean.to(tensor.dtype), tensor, out=tensor)`.",
    ],
    2: [
        "Speeds 3, 2 and 2, a batch of 10: shares in proportion are 4.3, 2.9 and 2.9. Rounded down they are 4, 2 "
        "and 2, and 2 samples remain. When would each rank end if it got one more?",
        "With one more sample rank r ends at `(share + 1) / speed`: give it to the rank for which that is least, "
        "and look again for the next one. In `rebalance` a speed is all samples over all seconds since the last "
        "call; a rank that has measured nothing sends the speed that it has in `self.speeds`.",
        "`shares = [int(global_batch_size * speed / sum(speeds)) for speed in speeds]`; then `global_batch_size - "
        "sum(shares)` times: `ends = [(share + 1) / speed ...]` and `shares[ends.index(min(ends))] += 1`. "
        "`rebalance`: `speed = self.samples / self.seconds`, `self.speeds = given.exchange_speeds(speed, "
        "self.group)`, and both counts back to 0.",
    ],
    3: [
        "Period 2, and 5 steps: which calls of `step` send something? And with 2 steps of warm-up before? Write "
        "them down, with what is averaged in each: gradients or weights. After a local step ranks differ.",
        "Data parallel, while `self.steps < self.data_parallel_steps`: average gradients first, then every rank "
        "takes the same step. Local: take the step, but only with samples; add 1 to `local_steps` and the samples "
        "to `samples`; if `local_steps` is the period, synchronize. `synchronize` averages only if there was a "
        "local step, and both counts begin at 0 again.",
        "`weighted_average(given.gradients(self.parameters), samples, self.group)`, then `self.optimizer.step()`; "
        "else `if samples: self.optimizer.step()`, the counts, and `if self.local_steps == self.period: "
        "self.synchronize()`. At the end of both `self.steps += 1`. `synchronize`: `if self.local_steps: "
        "self.average()`, then `self.local_steps, self.samples = 0, 0`.",
    ],
    4: [
        "An optimizer goes against the gradient. All ranks began at the anchor, and are now elsewhere: which "
        "difference, as a gradient, makes the outer optimizer go their way? After its step, where is the model?",
        "`anchor.grad = anchor - parameter` on each rank; their weighted average is the same on all ranks, so the "
        "outer step is, too. It moves the anchors; the parameters become copies of them.",
        "For each pair: `anchor.grad = anchor - parameter`. Then `weighted_average(given.gradients(self.anchors), "
        "self.samples, self.group)` and `self.outer.step()`. Then for each pair `parameter.copy_(anchor)`.",
    ],
}
