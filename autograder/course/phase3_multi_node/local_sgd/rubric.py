"""Hidden rubric of local_sgd: 25 points, 14 for values, 11 for communication, speeds, time and errors.

Each rank is pulled towards tensors of its own, which no other rank has; the judge repeats the steps of all ranks in
float64. Samples and steps take a time that the judge charges, so the trace shows who waits, and how well batches are
balanced. Communication is read from the trace: which collectives, and how many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import nan
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.clusters.virtual import slow
from labkit.course.phase3_multi_node.local_sgd.scenarios import averaged, divided, paced, recorded
from labkit.trace import Kind

CLOSE = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 0.03}
"""Tolerance for some steps of an optimizer, by the parameters' dtype."""
SHAPES = ((5, 3), (7,), (), (2, 2, 3))
FORBIDDEN = {
    "torch.distributed.optim",
    "torch.distributed.algorithms",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.all_gather_object",
    "torch.distributed.barrier",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def scattered(first: Tensor, second: Tensor, weight: float, group: Any = None) -> list[Tensor]:
    """On a rank: average two tensors, of which the first is not contiguous; return them."""
    return averaged([first.mT.contiguous().mT, second], weight, group)


def optimizer_of(name: str) -> Any:
    """Adam's step is not linear in the gradient; momentum depends on all steps before."""
    from functools import partial

    import torch

    if name == "adam":
        return partial(torch.optim.Adam, lr=0.05, eps=0.01)
    if name == "momentum":
        return partial(torch.optim.SGD, lr=0.25, momentum=0.5, weight_decay=0.125)
    if name == "nesterov":
        return partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    return partial(torch.optim.SGD, lr=float(name))


def trained(
    initial: list[Tensor],
    targets: list[list[Tensor]],
    samples: list[int],
    optimizer: str,
    period: int,
    warmup: int = 0,
    outer: str = "",
    missing: int = -1,
    ends: list[int] | None = None,
    group: Any = None,
    fast: Any = None,
    late: Any = None,
    pattern: list[bool] | None = None,
) -> list[Tensor]:
    """On a rank: take the steps, of which each one goes from the weights towards its targets; return all weights, flat,
    after each step, and after a last `synchronize`.

    outer: of DiLoCo. missing: the parameter that has no gradient here. ends: steps followed by `synchronize`, as at the
    end of an epoch. fast, late: work, of which `pattern` says for each step which is done.
    """
    import torch

    from labkit.exercises import local_sgd

    weights = [values.clone().requires_grad_() for values in initial]
    inner = optimizer_of(optimizer)(weights)
    if outer:
        trainer = local_sgd.DiLoCo(inner, optimizer_of(outer), period, group)
    else:
        trainer = local_sgd.LocalSGD(inner, period, warmup, group)
    found = []
    for step, (tensors, count) in enumerate(zip(targets, samples, strict=True)):
        if pattern is not None:
            (late if pattern[step] else fast)()
        for number, (weight, tensor) in enumerate(zip(weights, tensors, strict=True)):
            gradient = weight.detach() - tensor if count else torch.full_like(weight, float("nan"))
            weight.grad = None if number == missing else gradient
        trainer.step(count)
        if ends and step in ends:
            trainer.synchronize()
            trainer.synchronize()
        found.append(torch.cat([weight.detach().reshape(-1) for weight in weights]))
    trainer.synchronize()
    found.append(torch.cat([weight.detach().reshape(-1) for weight in weights]))
    return found


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch

    from labkit.exercises import local_sgd

    weight = torch.ones(2, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0)
    tried = {
        "period": lambda: local_sgd.LocalSGD(sgd, 0),
        "warmup_steps": lambda: local_sgd.LocalSGD(sgd, 2, -1),
        "optimizer": lambda: local_sgd.LocalSGD([weight], 2),
        "outer": lambda: local_sgd.DiLoCo(sgd, sgd, 2),
        "weight": lambda: local_sgd.weighted_average([weight], -1.0),
        "tensors": lambda: local_sgd.weighted_average([torch.ones(2, dtype=torch.int64)], 1.0),
        "speeds": lambda: local_sgd.balance_batches([1.0, 0.0], 3),
        "global_batch_size": lambda: local_sgd.balance_batches([1.0, 1.0], -3),
        "samples": lambda: local_sgd.BatchBalancer().record(-1, 1.0),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# What must come out ---------------------------------------------------------------------------------------------------


class Training:
    """What the ranks of a group do, and the weights that they must have: `wanted[rank][step]`, one more at the end.

    missing: the rank without a gradient for its second parameter. ends: steps followed by `synchronize`.
    """

    def __init__(
        self,
        draw: Draw,
        samples: list[list[int]],
        optimizer: str,
        period: int,
        warmup: int = 0,
        outer: str = "",
        *,
        missing: int = -1,
        ends: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        shapes: Sequence[tuple[int, ...]] = SHAPES,
    ) -> None:
        self.samples, self.optimizer, self.period, self.warmup, self.outer = samples, optimizer, period, warmup, outer
        self.missing, self.ends, self.dtype = missing, ends, dtype
        self.ranks, self.steps = len(samples), len(samples[0])
        self.initial = [draw.tensor(shape, dtype) for shape in shapes]
        self.targets = [
            [[draw.tensor(shape, dtype) for shape in shapes] for _ in range(self.steps)] for _ in range(self.ranks)
        ]
        self.wanted = self.one_process()

    @property
    def numel(self) -> int:
        return sum(values.numel() for values in self.initial)

    def rounds(self) -> int:
        """Return how often the ranks must communicate."""
        found = local = 0
        for step in range(self.steps):
            if self.data_parallel(step):
                found += 1
                continue
            local += 1
            if local == self.period or step in self.ends or step + 1 == self.steps:
                found, local = found + 1, 0
        return found

    def data_parallel(self, step: int) -> bool:
        return not self.outer and (self.period == 1 or step < self.warmup)

    def args(self, rank: int, **options: Any) -> Args:
        """Return a rank's arguments; all ranks but the first begin elsewhere."""
        return Args(
            [values + rank for values in self.initial],
            self.targets[rank],
            self.samples[rank],
            self.optimizer,
            self.period,
            self.warmup,
            self.outer,
            1 if rank == self.missing else -1,
            list(self.ends),
            **options,
        )

    def one_process(self) -> list[list[Tensor]]:
        """Take all ranks' steps, one after the other, in float64."""

        def flat(tensors: Sequence[Tensor]) -> Tensor:
            return torch.cat([values.double().reshape(-1) for values in tensors])

        weights = [[w.double().clone().requires_grad_() for w in self.initial] for _ in range(self.ranks)]
        own = [optimizer_of(self.optimizer)(some) for some in weights]
        anchor = flat(self.initial).requires_grad_()
        outer = optimizer_of(self.outer)([anchor]) if self.outer else None
        since, local = [0] * self.ranks, 0
        found: list[list[Tensor]] = [[] for _ in range(self.ranks)]

        def synchronize() -> None:
            nonlocal local
            if not local:
                return
            total = sum(since)
            mean = sum(n * flat([w.detach() for w in some]) for n, some in zip(since, weights, strict=True))
            result = torch.as_tensor(mean) / total if total else anchor.detach()
            if outer is not None:
                anchor.grad = anchor.detach() - result
                outer.step()
                result = anchor.detach().clone()
            for some in weights:
                parts = result.split([w.numel() for w in some])
                for weight, part in zip(some, parts, strict=True):
                    weight.data.copy_(part.view(weight.shape))
            since[:], local = [0] * self.ranks, 0

        for step in range(self.steps):
            counts = [own[step] for own in self.samples]
            for rank, some in enumerate(weights):
                for number, (weight, target) in enumerate(zip(some, self.targets[rank][step], strict=True)):
                    gone = rank == self.missing and number == 1
                    weight.grad = None if gone else weight.detach() - target.double()
            if self.data_parallel(step):
                for several in zip(*weights, strict=True):
                    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in several]
                    mean = sum(n * grad for n, grad in zip(counts, grads, strict=True)) / sum(counts)
                    for weight in several:
                        weight.grad = torch.as_tensor(mean).clone()
                for one in own:
                    one.step()
            else:
                for rank, one in enumerate(own):
                    if counts[rank]:
                        one.step()
                    since[rank] += counts[rank]
                local += 1
                if local == self.period or step in self.ends:
                    synchronize()
            for rank, some in enumerate(weights):
                found[rank].append(flat([w.detach() for w in some]))
        synchronize()
        for rank, some in enumerate(weights):
            found[rank].append(flat([w.detach() for w in some]))
        return found

    def compare(self, values: Sequence[Any], look_at: str = "") -> None:
        """Expect the weights of all ranks after each step, and at the end."""
        kind = f"DiLoCo with outer {self.outer}" if self.outer else f"LocalSGD with {self.warmup} steps of warm-up"
        text = f"{kind}, {self.optimizer}, period {self.period}, on {self.ranks} ranks"
        for step in range(self.steps + 1):
            seen = [value[step] if isinstance(value, list) and len(value) > step else None for value in values]
            after = f"after step {step + 1} of {self.steps}" if step < self.steps else "after the last `synchronize`"
            wanted = [own[step].to(self.dtype) for own in self.wanted]
            expect(seen, f"weights {after}: {text}", look_at=look_at).close_to(wanted, rel=CLOSE[self.dtype])

    def train(self, submission: Submission, ranks: Ranks, look_at: str = "") -> Run:
        """Let the ranks train; expect the weights."""
        given = [self.args(rank) for rank in range(self.ranks)]
        run = ranks(self.ranks).call(submission.used_by(trained, optimizer_of), given)
        self.compare(run.values, look_at)
        return run

    def expect_rounds(self, run: Run) -> None:
        """Expect one all-reduce for each round, of all parameters and the weight, and one broadcast at the start."""
        nbytes = (self.numel + 1) * self.initial[0].element_size()
        for rank in range(self.ranks):
            called = sorted(run.trace.collectives(rank), key=lambda event: event.start)
            seen = [(event.operation, event.nbytes) for event in called if event.operation != "broadcast"]
            what = f"collectives of rank {rank}, with bytes, in {self.steps} steps of period {self.period} after "
            expect(seen, f"{what}{self.warmup} of warm-up").equals([("all_reduce", nbytes)] * self.rounds())
            expect(len(called) - len(seen), "broadcasts, one at the start").at_most(1)
            expect(run.trace.messages_sent(rank), "messages beside them").equals(0)


def some_samples(draw: Draw, ranks: int, steps: int, least: int = 1) -> list[list[int]]:
    """Return numbers of samples; one rank at least has some in each step."""
    found = [[draw.choice([least, 1, 2, 3, 7]) for _ in range(steps)] for _ in range(ranks)]
    for step in range(steps):
        found[draw.randrange(ranks)][step] = draw.randrange(2, 6)
    return found


def least_time(speeds: Sequence[float], batch: int) -> float:
    """Return the time of the slowest rank in the best split: the batch-th of the times at which samples can end."""
    share = Fraction(batch) / sum(map(Fraction, speeds))
    counts = [int(share * Fraction(speed)) for speed in speeds]
    rest = batch - sum(counts)
    ends = sorted(
        (count + more) / Fraction(speed)
        for count, speed in zip(counts, speeds, strict=True)
        for more in range(1, rest + 1)
    )
    before = max(count / Fraction(speed) for count, speed in zip(counts, speeds, strict=True))
    return float(max(before, ends[rest - 1]) if rest else before)


# Averages -------------------------------------------------------------------------------------------------------------


@check(points=2, todo=1, title="weighted means over ranks and groups", look_at="weighted_average")
def means(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [1, draw.choice([2, 3]), draw.choice([4, 5]), 3]
    for number, world_size in enumerate(sizes):
        dtype = draw.choice([torch.float32, torch.float64])
        first, second = draw.tensors(world_size, (3, 4), dtype), draw.tensors(world_size, (5,), torch.bfloat16)
        weights = [draw.choice([0.5, 1, 2.25, 3, 10]) for _ in range(world_size)]
        if number == 2:
            gone = draw.randrange(world_size)
            weights[gone], first[gone] = 0, torch.full_like(first[gone], nan)
        if number == 3:
            weights = [0.0] * world_size
        given = [Args(*both) for both in zip(first, second, weights, strict=True)]
        run = ranks(world_size).call(submission.used_by(scattered, averaged), given)
        for place, tensors in enumerate((first, second)):
            total = sum(weights)
            mean = sum(w * x.double() for w, x in zip(weights, tensors, strict=True) if w)
            wanted = [torch.as_tensor(mean / total).to(x.dtype) if total else x for x in tensors]
            what = f"means with weights {', '.join(map(str, weights))}"
            rel = CLOSE[tensors[0].dtype] if place else 1e-5
            expect([value[place] for value in run.values], what).close_to(wanted, rel=rel)
    members = sorted(draw.sample(range(4), 2))
    others = [rank for rank in range(4) if rank not in members]
    tensors, pair = draw.tensors(4, (3, 4)), [draw.randrange(1, 5) for _ in range(4)]
    given = [
        Args(tensors[r], tensors[r][0] + 1, pair[r], group_of(members if r in members else others)) for r in range(4)
    ]
    run = ranks(4).call(submission.used_by(scattered, averaged), given)
    for some in (members, others):
        mean = torch.as_tensor(sum(pair[r] * tensors[r] for r in some) / sum(pair[r] for r in some))
        seen = [run.values[r][0] for r in some]
        expect(seen, f"mean in the group {some}").close_to([mean] * 2, rel=1e-6)


@check(points=1, todo=1, title="one all-reduce for all tensors and the weight", look_at="weighted_average")
def one_message(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, length = draw.choice([2, 3, 4]), draw.randrange(5, 30)
    first, second = draw.tensors(world_size, (3, length)), draw.tensors(world_size, (length,))
    weight = draw.randrange(1, 5)
    given = [Args(*both, weight) for both in zip(first, second, strict=True)]
    run = ranks(world_size).call(submission.used_by(scattered, averaged), given)
    expect([value[1] for value in run.values], "means").close_to([torch.stack(second).mean(0)] * world_size, rel=1e-5)
    for rank in range(world_size):
        seen = [(event.operation, event.nbytes) for event in run.trace.collectives(rank)]
        expect(seen, f"collectives, with bytes, for {4 * length} float32").equals([("all_reduce", 16 * length + 4)])
        expect(run.trace.messages_sent(rank), "messages beside it").equals(0)


# Speeds ---------------------------------------------------------------------------------------------------------------


@check(points=2, todo=2, title="no other split is faster", look_at="balance_batches: the rest after rounding down")
def split(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases: list[Any] = []
    for _ in range(12):
        count = draw.randrange(1, 9)
        spread = draw.choice([1.0, 2.0, 30.0])
        speeds = [draw.uniform(1.0, spread) * draw.choice([0.01, 100.0]) for _ in range(count)]
        cases.append([speeds, draw.choice([0, 1, draw.randrange(2, 40), draw.randrange(40, 5000)])])
    cases.append([[7.0] * 5, 13])
    (found,) = ranks(1).call(submission.used_by(divided), [Args(cases)]).values
    for (speeds, batch), shares in zip(cases, found, strict=True):
        case = f"{batch} samples on {len(speeds)} ranks"
        expect((len(shares), sum(shares)), f"shares and their sum: {case}").equals((len(speeds), batch))
        expect(min(shares), f"smallest share: {case}").at_least(0)
        slowest = max(share / speed for share, speed in zip(shares, speeds, strict=True))
        limit = least_time(speeds, batch) * (1 + 1e-9)
        expect(slowest, f"time of the slowest rank: {case}", unit="seconds").at_most(limit)


@check(points=2, todo=2, title="speeds are those since the last time, of all ranks", look_at="rebalance")
def speeds(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, times = draw.choice([3, 4]), 4
    records: list[list[list[list[float]]]] = []
    wanted: list[list[float]] = []
    for _ in range(world_size):
        own, known, last = [], [], 1.0
        for _ in range(times):
            several = [[float(draw.randrange(1, 50)), draw.uniform(0.1, 3.0)] for _ in range(draw.choice([0, 1, 3]))]
            if several:
                last = sum(n for n, _ in several) / sum(seconds for _, seconds in several)
            own.append(several)
            known.append(last)
        records.append(own)
        wanted.append(known)
    members = sorted(draw.sample(range(world_size), 2))
    for group in (None, members):
        ranks_in = members if group else list(range(world_size))
        chosen = group_of(group) if group else None
        given = [Args(records[rank], chosen) if rank in ranks_in else None for rank in range(world_size)]
        run = ranks(world_size).call(submission.used_by(recorded), given)
        right = torch.tensor([[wanted[rank][time] for rank in ranks_in] for time in range(times)])
        seen = [torch.tensor(run.values[rank]) for rank in ranks_in]
        expect(seen, f"speeds of ranks {ranks_in}, {times} times").close_to([right] * len(ranks_in), rel=1e-5)
        called = [(event.operation, event.nbytes) for event in run.trace.collectives(ranks_in[0])]
        expect(called, "collectives, with bytes").equals([("all_gather", 8)] * times)


@check(
    points=2,
    todo=2,
    title="balanced steps take at most 5 % more than the best split, also after a rank has become slow",
    look_at="rebalance: whose speed is whose, and of which steps",
)
def balanced_time(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, batch = draw.choice([3, 4]), draw.randrange(150, 200)
    pace = [draw.uniform(0.001, 0.004) for _ in range(world_size)]
    # a rank becomes slow in the third batch; the next one is divided by wrong speeds, the one after it by right ones
    straggler, factor = draw.randrange(world_size), draw.uniform(2.0, 4.0)
    first = max(pace) * -(-batch // world_size)
    best = batch / sum(1 / seconds for seconds in pace)
    faults = [slow(straggler, factor=factor, at=first + 1.4 * best)]
    batches, mark = [batch] * 5 + [draw.randrange(20, 40)], work("mark", 1e-9)
    given = [Args(batches, work("sample", seconds), mark) for seconds in pace]
    run = ranks(world_size, faults=faults).call(submission.used_by(paced), given)
    marks = [sorted(e for e in run.trace.of(r, Kind.COMPUTE) if e.operation == "mark") for r in range(world_size)]
    for number, size in enumerate(batches):
        slices = [value[number] for value in run.values]
        expect([start for start, _ in slices], f"where slices of batch {number} begin").equals(
            [0, *(end for _, end in slices[:-1])]
        )
        expect(slices[-1][1], f"end of the last slice of batch {number}").equals(size)
        done = [
            sum(own[2 * number].end <= e.start < own[2 * number + 1].start for e in run.trace.of(r, Kind.COMPUTE))
            for r, own in enumerate(marks)
        ]
        expect(done, f"samples of batch {number} that ranks compute").equals([end - start for start, end in slices])
        if number not in (1, 4, 5):
            continue
        real = [seconds * (factor if number > 1 and r == straggler else 1) for r, seconds in enumerate(pace)]
        least = least_time([1 / seconds for seconds in real], size)
        took = max(own[2 * number + 1].start - own[2 * number].end for own in marks)
        what = f"seconds of the slowest rank for batch {number} of {size} samples, at best {least:.4g}"
        expect(took, what, unit="seconds").at_most(1.05 * least)


# Local SGD ------------------------------------------------------------------------------------------------------------


@check(points=3, todo=3, title="local steps, and the mean after each period", look_at="LocalSGD.step")
def local_steps(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for optimizer, dtype in (("momentum", torch.float64), ("adam", torch.float32), ("0.25", torch.bfloat16)):
        world_size, period = draw.choice([2, 3, 4]), draw.choice([2, 3, 4])
        samples = [[draw.randrange(1, 4)] * (2 * period + 1)] * world_size
        Training(draw, samples, optimizer, period, dtype=dtype).train(submission, ranks)
    samples = [[draw.randrange(1, 4)] * 6] * 3
    Training(draw, samples, "0.25", 3, warmup=draw.choice([1, 2])).train(submission, ranks)


@check(
    points=2,
    todo=3,
    title="one all-reduce for each period, and nobody waits before",
    look_at="LocalSGD.step and synchronize: when something is sent",
)
def rounds(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    period = draw.choice([3, 4])
    for warmup, steps, ends in ((0, 2 * period + 1, ()), (draw.choice([1, 2]), 9, (5,)), (0, 2 * period, (2,))):
        world_size = draw.choice([2, 3])
        training = Training(draw, [[2] * steps] * world_size, "0.25", period, warmup, ends=ends)
        training.expect_rounds(training.train(submission, ranks))
    # each rank is late in one step of each period, another one in each
    training = Training(draw, [[2] * 4] * 2, "0.25", 2)
    fast, late = draw.uniform(0.01, 0.02), draw.uniform(0.05, 0.08)
    given = [
        training.args(
            rank, fast=work("fast", fast), late=work("late", late), pattern=[step % 2 == rank for step in range(4)]
        )
        for rank in range(2)
    ]
    run = ranks(2).call(submission.used_by(trained, optimizer_of), given)
    training.compare(run.values)
    what = f"seconds of two periods, in each of which a rank has a step of {late:.3g} s and one of {fast:.3g} s"
    expect(run.trace.seconds, what, unit="seconds").at_most(2 * (fast + late) + 0.005)


@check(
    points=3,
    todo=3,
    title="period 1 and warm-up: the steps of one process",
    look_at="LocalSGD.step: gradients are averaged, with this step's samples",
)
def one_process(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for optimizer, period, warmup in (("adam", 1, 0), ("momentum", 1, 0), ("adam", 4, 5)):
        world_size = draw.choice([1, 2, 3, 4])
        dtype = draw.choice([torch.float32, torch.float64])
        samples = some_samples(draw, world_size, 5, least=0)
        missing = draw.randrange(world_size) if world_size > 1 else -1
        Training(draw, samples, optimizer, period, warmup, missing=missing, dtype=dtype).train(submission, ranks)


@check(
    points=2,
    todo=3,
    title="ranks count by their samples, also in the last, short period",
    look_at="`samples`: of which steps, and when they begin at 0",
)
def unequal(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for optimizer, period, ends in (("momentum", 3, ()), ("adam", 2, (2,)), ("0.25", 3, (3, 6))):
        world_size = draw.choice([2, 3, 4])
        samples = some_samples(draw, world_size, 2 * period + 2, least=0)
        Training(draw, samples, optimizer, period, ends=ends).train(submission, ranks)


@check(points=1, todo=3, title="groups of some of the ranks", look_at="`self.group` in every average")
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    order = draw.sample(range(5), 5)
    members = [sorted(order[:2]), sorted(order[2:])]
    given: list[Any] = [None] * 5
    both = [Training(draw, [[3] * 5] * len(some), "0.25", 2, warmup=1) for some in members]
    for some, training in zip(members, both, strict=True):
        for place, rank in enumerate(some):
            given[rank] = training.args(place, group=group_of(some))
    run = ranks(5).call(submission.used_by(trained, optimizer_of), given)
    for some, training in zip(members, both, strict=True):
        training.compare([run.values[rank] for rank in some], look_at=f"the group {some}")


# DiLoCo ---------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=4,
    title="DiLoCo: outer steps with Nesterov momentum",
    look_at="DiLoCo.average: the pseudo-gradient, and where ranks continue",
)
def outer_steps(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for optimizer, outer, period in (("adam", "nesterov", 2), ("momentum", "nesterov", 1), ("adam", "adam", 3)):
        world_size = draw.choice([1, 2, 3, 4])
        dtype = draw.choice([torch.float32, torch.float64])
        samples = some_samples(draw, world_size, 3 * period + 1, least=0)
        ends = () if period == 1 else (period,)
        Training(draw, samples, optimizer, period, outer=outer, ends=ends, dtype=dtype).train(submission, ranks)
    # in bfloat16 the next number after 256 is 258; eight outer steps go 1.6 from there, of 4
    training = Training(draw, [[2] * 8] * 2, "1.0", 1, outer="0.0625", dtype=torch.bfloat16, shapes=((6,),))
    training.initial = [torch.full((6,), 256, dtype=torch.bfloat16)]
    training.targets = [[[torch.full((6,), 260, dtype=torch.bfloat16)]] * 8] * 2
    given = [training.args(0)] * 2
    run = ranks(2).call(submission.used_by(trained, optimizer_of), given)
    hint = "anchors have more digits than parameters"
    seen = [value[-1] for value in run.values]
    expect(seen, "bfloat16 weights after 8 small outer steps", look_at=hint).equals([training.initial[0] + 2] * 2)


@check(
    points=1,
    todo=4,
    title="DiLoCo: one all-reduce for each period",
    look_at="DiLoCo.average: one `weighted_average`; no step is data parallel",
)
def outer_rounds(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for period in (1, draw.choice([3, 4])):
        samples = [[3] * (2 * period + 1)] * draw.choice([2, 3])
        training = Training(draw, samples, "momentum", period, outer="nesterov")
        training.expect_rounds(training.train(submission, ranks))


# For all --------------------------------------------------------------------------------------------------------------


@check(points=1, todo=4, title="bad arguments raise ValueError", look_at="the given lines at the beginning must stay")
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    # who does nothing raises nothing either
    Training(draw, [[2] * 3] * 2, "momentum", 1).train(submission, ranks)
    cases = ["period", "warmup_steps", "optimizer", "outer", "weight", "tensors", "speeds", "global_batch_size"]
    cases.append("samples")
    run = ranks(2).call(submission.used_by(misused), [Args(cases)] * 2)
    for value in run.values:
        for case, seen in zip(cases, value, strict=True):
            expect(seen.startswith(f"ValueError: {case}"), f"ValueError that begins with {case}").holds(seen)
    expect(len(run.trace.collectives()), "collectives before an error").equals(0)


@check(
    points=1,
    todo=4,
    title="real processes: the bytes of one all-reduce for each period",
    look_at="what travels beside the parameters",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps, period = 3, 8, 4
    shapes = ((draw.randrange(90, 110), 400),)
    training = Training(draw, [[2] * steps] * world_size, "momentum", period, outer="nesterov", shapes=shapes)
    given = [training.args(rank) for rank in range(world_size)]
    run = ranks.processes(world_size).call(submission.used_by(trained, optimizer_of), given)
    training.compare(run.values)
    # an all-reduce sends 2(N-1) times the parameters, the broadcast at the start N-1 times
    nbytes = 4 * training.numel * (world_size - 1) * (2 * training.rounds() + 1)
    what = "bytes that all ranks sent, by the kernel"
    expect(run.bytes_on_the_wire, what, unit="bytes").at_most(1.1 * nbytes)
