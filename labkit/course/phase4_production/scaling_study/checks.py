"""Visible checks and hints of scaling_study: small numbers that can be followed by hand.

Steps take whole milliseconds, and the first two of a workload take 50 more. Studies of recorded measurements show the
denominators alone; a study on ranks shows that the right thing was measured.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, work
from labkit.clusters import Run
from labkit.course.phase4_production.scaling_study.scenarios import computed, fitted, laws, studied, timed
from labkit.trace import Kind

# Checks ---------------------------------------------------------------------------------------------------------------


def require_modelled(run: Run) -> None:
    if run.trace.clock != "modelled":
        raise NotMeasurable("times are checked on virtual ranks, where they are exact")


def expect_close(seen: float, wanted: float, what: str, look_at: str = "", rel: float = 0.01) -> None:
    expect([torch.tensor(seen, dtype=torch.float64)], what, look_at=look_at).close_to(
        [torch.tensor(wanted, dtype=torch.float64)], rel=rel
    )


@check(
    points=4,
    todo=1,
    title="time_steps: warm-up left out, all begin together, the slowest rank counts",
    look_at="time_steps: what happens before the clock is read, and what is the same on all ranks",
)
def times(submission: Submission, ranks: Ranks) -> None:
    tick = work("step", 0.001)
    # two steps of warm-up take 50 ms; after that ranks take turns in being slow
    plans = [[2, 6], [6, 2], [3, 3]]
    run = ranks(3).call(submission.used_by(timed), [Args(plan, 0, [50, 50], [4, 2, 2], 0, tick) for plan in plans])
    require_modelled(run)
    for rank, value in enumerate(run.values):
        what = f"figures on rank {rank}: one for each of 2 repeats"
        expect(len(value), what).equals(2)
        for seconds in value:
            what = f"seconds of a step on rank {rank}: ranks take 2 + 6, 6 + 2 and 3 + 3 ms in turn, after warm-up"
            expect_close(
                seconds, 0.004, what, "4 steps of a rank take 16 ms; a barrier belongs before them, not between"
            )
        calls = sum(event.operation == "step" for event in run.trace.of(rank, Kind.COMPUTE))
        expect(calls, f"milliseconds that rank {rank} works: 2 steps of warm-up, then 2 repeats of 4").equals(
            100 + 2 * (12 if rank == 2 else 16)
        )
        seen = [event.operation for event in run.trace.collectives(rank)]
        expect(len(seen), f"collectives of rank {rank}: one before each of 2 repeats, one at the end: {seen}").at_most(
            3
        )
    slow = ranks(2).call(submission.used_by(timed), [Args([n], 0, [], [4, 0, 2], 0, tick) for n in (3, 5)])
    expect_close(slow.values[0][0], 0.005, "seconds of a step on rank 0: it takes 3 ms, rank 1 takes 5")
    late = [Args([10], 30 * rank, [], [4, 0, 2], 1, tick) for rank in range(2)]
    run = ranks(2).call(submission.used_by(timed), late)
    what = "seconds of a step of 10 ms, which ends with a message; rank 1 comes 30 ms later"
    expect_close(run.values[0][0], 0.01, what, "the clock is read before all are there", rel=0.05)


@check(
    points=4,
    todo=2,
    title="weak scaling: each rank keeps its batch",
    look_at="weak_scaling: `self.measure` takes the samples of each rank; throughput per GPU of the first one is 1",
)
def weak(submission: Submission, ranks: Ranks) -> None:
    table = [[1, 8, [0.1], [0.1]], [2, 8, [0.125], [0.1]], [4, 8, [0.2], [0.1]]]
    calls = [["weak_scaling", [1, 2, 4], 8], ["weak_scaling", [2, 4], 8]]
    (first, second) = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    for seen, wanted, gpus in ((first, [1.0, 0.8, 0.5], "1, 2 and 4"), (second, [1.0, 0.625], "2 and 4")):
        what = f"efficiencies of {gpus} GPUs with 8 samples each: steps take 100, 125, 200 ms on 1, 2, 4"
        for own, right in zip(seen, wanted, strict=True):
            expect_close(own, right, what, "compared with the first, whatever its number of GPUs")
    expect_study(submission, ranks, "weak", [1, 2, 4], 6, [(1, 6, 7), (2, 6, 8), (4, 6, 10)])


@check(
    points=4,
    todo=2,
    title="strong scaling: all ranks together keep theirs",
    look_at="strong_scaling: n ranks have 1/n of the samples each; ideal is 1/n of the time",
)
def strong(submission: Submission, ranks: Ranks) -> None:
    table = [[1, 16, [0.16], [0.16]], [2, 8, [0.1], [0.08]], [4, 4, [0.08], [0.04]]]
    calls = [["strong_scaling", [1, 2, 4], 16], ["strong_scaling", [2, 4], 16]]
    (first, second) = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    for seen, wanted, gpus in ((first, [1.0, 0.8, 0.5], "1, 2 and 4"), (second, [1.0, 0.625], "2 and 4")):
        what = f"efficiencies of {gpus} GPUs with 16 samples together: steps take 160, 100, 80 ms on 1, 2, 4"
        for own, right in zip(seen, wanted, strict=True):
            expect_close(own, right, what, "GPUs times seconds of the first, over those of each")
    expect_study(submission, ranks, "strong", [1, 2, 4], 12, [(1, 12, 13), (2, 6, 8), (4, 3, 7)])


def expect_study(
    submission: Submission, ranks: Ranks, kind: str, sizes: list[int], batch: int, wanted: list[tuple[int, int, int]]
) -> None:
    """Expect ranks, samples of each and milliseconds of a step of each point of a study on 4 ranks."""
    overhead = work("overhead", 0.001)
    given = Args(kind, sizes, batch, [2, 2, 1], work("sample", 0.001), work("warm", 0.05), overhead=overhead)
    run = ranks(4).call(submission.used_by(studied), [given] * 4)
    require_modelled(run)
    first = wanted[0][0] * wanted[0][2] / (wanted[0][0] * wanted[0][1])
    for rank, value in enumerate(run.values):
        for (gpus, samples, seconds, efficiency), (size, each, milliseconds) in zip(value, wanted, strict=True):
            what = f"ranks and samples of each, {kind} scaling with a batch of {batch}, on rank {rank}"
            expect([int(gpus), int(samples)], what).equals([size, each])
            expect_close(
                seconds, milliseconds / 1000, f"seconds of a step on {size} ranks: {each} ms and {size} ms more"
            )
            right = first / (milliseconds / each)
            expect_close(efficiency, right, f"efficiency of {size} ranks with {each} samples each, {milliseconds} ms")


@check(
    points=4,
    todo=3,
    title="throughput, and communication over computation",
    look_at="samples_per_second counts all ranks' samples; the ratio compares a step with the same without messages",
)
def ratios(submission: Submission, ranks: Ranks) -> None:
    table = [[4, 8, [0.2, 0.25, 0.9], [0.2, 0.1, 0.2]], [2, 8, [0.099, 0.099], [0.1, 0.1]], [1, 8, [0.1], [0.1]]]
    calls = [["samples_per_second", 0], *(["communication_to_computation_ratio", n] for n in range(3))]
    seen = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    expect_close(seen[0], 128.0, "samples per second of 4 ranks with 8 each, in steps of 250 ms (median)")
    expect_close(seen[1], 0.25, "ratio: a step takes 250 ms, without communication 200 (medians)")
    what = "ratio: a step takes 99 ms, without communication 100: that is the clock's noise"
    expect(seen[2], what, look_at="not below 0").equals(0.0)
    expect(seen[3], "ratio of one rank").equals(0.0)


@check(
    points=3,
    todo=3,
    title="cost_per_epoch: whole steps, all GPUs",
    look_at="cost_per_epoch: a step has the samples of all ranks; each GPU is paid for",
)
def costs(submission: Submission, ranks: Ranks) -> None:
    table = [[4, 25, [3.6], [3.6]]]
    calls = [["cost_per_epoch", 0, 1000, 2.0], ["cost_per_epoch", 0, 1001, 0], ["cost_per_epoch", 0, 7, 1.5]]
    seen = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    cases = [
        ("1000 samples, 2 dollars for a GPU and hour", [10, 0.01, 0.04, 0.08]),
        ("1001 samples, for nothing", [11, 0.011, 0.044, 0.0]),
        ("7 samples, 1.50 dollars", [1, 0.001, 0.004, 0.006]),
    ]
    for value, (what, wanted) in zip(seen, cases, strict=True):
        for own, right, name in zip(value, wanted, ("steps", "hours", "GPU hours", "dollars"), strict=True):
            expect_close(own, right, f"{name} for {what}: 4 GPUs, 25 samples each, steps of 3.6 s")


@check(
    points=4,
    todo=4,
    title="Amdahl, Gustafson, and the universal law",
    look_at="amdahl, gustafson, usl, most_useful_gpus: with one GPU each speedup is 1",
)
def formulas(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[list[Any], float]] = [
        (["amdahl", 1, 0.1], 1.0),
        (["amdahl", 10, 0.1], 1 / 0.19),
        (["amdahl", 8, 0.0], 8.0),
        (["gustafson", 1, 0.1], 1.0),
        (["gustafson", 10, 0.1], 9.1),
        (["usl", 1, 0.1, 0.01], 1.0),
        (["usl", 10, 0.1, 0.0], 1 / 0.19),
        (["usl", 10, 0.1, 0.01], 10 / 2.8),
        (["most_useful_gpus", 0.19, 0.0001], 90.0),
        (["most_useful_gpus", 0.5, 0.9], 1.0),
    ]
    seen = ranks(1).call(submission.used_by(laws), [Args([call for call, _ in cases])]).values[0]
    for value, ((name, *args), wanted) in zip(seen, cases, strict=True):
        expect_close(value, wanted, f"{name}({', '.join(map(str, args))})")
    grows = ranks(1).call(submission.used_by(laws), [Args([["most_useful_gpus", 0.1, 0.0]])]).values[0]
    expect(grows[0], "most_useful_gpus(0.1, 0.0): without coherency it grows without end").equals(math.inf)


@check(
    points=2,
    todo=4,
    title="report: every row says where its times come from",
    look_at="report and what it calls: `samples_per_second`, the ratio, and the laws",
)
def reports(submission: Submission, ranks: Ranks) -> None:
    table: list[list[Any]] = [[n, 8, [0.1 + 0.001 * n], [0.1]] for n in (1, 2, 4, 8)]
    formats = ["markdown", "csv", "json"]
    seen = ranks(1).call(submission.used_by(fitted), [Args("weak", table, 8, formats)]).values[0]
    fits, markdown, comma_separated, plain = seen
    expect(len(fits), "fits: Gustafson's and the universal law for each of 3 curves").equals(6)
    for origin in ("real", "virtual", "predict"):
        rows = [line for line in markdown.splitlines() if line.startswith(f"| {origin} |")]
        expect(len(rows), f"rows of Markdown that are marked {origin}").equals(4)
        expect(comma_separated.count(f"weak,{origin},"), f"rows of CSV that are marked {origin}").equals(4)
    points = json.loads(plain)["points"]
    rates = [point["samples_per_second"] for point in points[:4]]
    for rate, (gpus, batch, (seconds,), _) in zip(rates, table, strict=True):
        expect_close(rate, gpus * batch / seconds, f"samples per second of {gpus} GPUs in JSON")


HINTS = {
    1: [
        "The first steps allocate memory, compile and connect. If one rank comes late, when may the others begin to "
        "count? If ranks take 2 and 5 ms, how long do both need for a step that ends with a message?",
        "Call `step` `self.warmup` times. Then, for each repeat: a barrier of the group, the clock, `self.steps` "
        "steps, the clock. At the end one all-reduce with `dist.ReduceOp.MAX`: all figures become the slowest rank's.",
        "`dist.barrier(group)`; `began = given.now(self.device)`; the loop; `seconds.append((given.now(self.device) - "
        "began) / self.steps)`. Behind the repeats `slowest = torch.tensor(seconds, dtype=torch.float64, "
        "device=self.device)`, `dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)`, `slowest.tolist()`.",
    ],
    2: [
        "Weak: four ranks have four times the samples of one; a step should take as long. Strong: four ranks have a "
        "quarter of the samples each; a step should take a quarter of the time. What is the throughput of a GPU?",
        "`self.measure(world_size, samples_of_each_rank)` gives a measurement with `seconds`. Weak: the first one's "
        "seconds over each. Strong: `world_size * seconds` of the first one over that of each.",
        "`measured = [self.measure(world_size, batch_size) for world_size in world_sizes]`, with `global_batch_size // "
        "world_size` in strong scaling. `[measured[0].seconds / one.seconds for one in measured]`, and `gpu_seconds[0] "
        "/ own for own in gpu_seconds` with `one.world_size * one.seconds`.",
    ],
    3: [
        "Four ranks with 8 samples each: how many samples has a step? An epoch of 1001 samples with 100 in a step: how "
        "many steps? Who pays for four GPUs that work for an hour pays for how many GPU hours?",
        "Throughput: ranks times samples of each, over seconds. The ratio: what the step takes longer than "
        "`measurement.computing`, over that; not below 0. Steps are rounded up.",
        "`measurement.world_size * measurement.batch_size / measurement.seconds`; `max(0.0, measurement.seconds / "
        "measurement.computing - 1)`; `steps = -(-num_samples // (measurement.world_size * measurement.batch_size))`, "
        "`hours = steps * measurement.seconds / 3600`, `gpu_hours = hours * measurement.world_size`.",
    ],
    4: [
        "Amdahl: of one hour on one GPU, 6 minutes cannot be divided. How long do 10 GPUs take? Gustafson: of one hour "
        "on 10 GPUs, 6 minutes do not grow with them. How much would one GPU take for the same work?",
        "Amdahl: 1 over (serial part plus the rest divided by n). Gustafson: the serial part plus n times the rest. "
        "`usl` is in its docstring; set its derivative to 0: the square of n is (1 - contention) / coherency.",
        "`1 / (serial + (1 - serial) / gpus)`; `serial + (1 - serial) * gpus`; `gpus / (1 + contention * (gpus - 1) + "
        "coherency * gpus * (gpus - 1))`; `max(1.0, ((1 - contention) / coherency) ** 0.5) if coherency else "
        'float("inf")`.',
    ],
}
