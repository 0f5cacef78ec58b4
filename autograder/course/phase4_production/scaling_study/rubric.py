"""Hidden rubric of scaling_study: 25 points, 15 for times and efficiencies of clusters that only the judge knows.

The judge draws a network, a computing time and a batch, and takes the same steps without the submission: what its own
trace says is right within 2 %. Laws, ratios and costs are compared with their formulas on drawn measurements.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.course.phase4_production.scaling_study.scenarios import computed, fitted, laws, studied, timed
from labkit.trace import Kind

FORBIDDEN = {"torch.distributed.all_gather_object", "torch.distributed.monitored_barrier"}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
WITHIN = 0.02
"""Relative error of times and efficiencies that counts as right."""
RATIO = ["communication_to_computation_ratio"]
"""What a study returns of each point, too."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def reference(batch: int, steps: int, nelements: int, sample: Any) -> None:
    """On a rank: the steps of `studied` without the submission; the judge reads their times from the trace."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    for _ in range(steps):
        for _ in range(batch):
            sample()
        dist.all_reduce(torch.zeros(nelements))


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch.distributed as dist

    from labkit.course.phase4_production.scaling_study.given import Measurement, Workload
    from labkit.exercises import scaling_study

    own = Measurement("real", "ddp", 2, 4, (1.0,), (1.0,))
    nothing = Workload(lambda: None, lambda: None)
    benchmark = scaling_study.ScalabilityBenchmark(lambda batch, group: nothing, steps=1, warmup=0, repeats=1)
    bare = scaling_study.ScalabilityBenchmark()
    tried = {
        "world_sizes": lambda: benchmark.weak_scaling([], 4),
        "world_sizes grow": lambda: benchmark.strong_scaling([2, 1], 4),
        "batch_size": lambda: benchmark.weak_scaling([1], 0),
        "global_batch_size": lambda: benchmark.strong_scaling([1, 2], 3),
        "world_size": lambda: benchmark.weak_scaling([1 + dist.get_world_size()], 4),
        "make_workload": lambda: bare.weak_scaling([1], 4),
        "num_samples": lambda: bare.cost_per_epoch(own, 0, 1.0),
        "dollars_per_gpu_hour": lambda: bare.cost_per_epoch(own, 9, -1.0),
        "format": lambda: bare.report("pdf"),
        "strategy": lambda: scaling_study.training("zero9", lambda: None, lambda model, n: None),
        "steps": lambda: scaling_study.ScalabilityBenchmark(steps=0),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except NotImplementedError:
            raise  # a part that is not written yet is no answer
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# What must come out ---------------------------------------------------------------------------------------------------


def expect_close(seen: float, wanted: float, what: str, rel: float = WITHIN, look_at: str = "") -> None:
    expect([torch.tensor(seen, dtype=torch.float64)], what, look_at=look_at).close_to(
        [torch.tensor(wanted, dtype=torch.float64)], rel=rel
    )


def drawn_efficiency(draw: Draw, sizes: list[int]) -> list[float]:
    """Return efficiencies that fall from 1, each well below the one before."""
    found = [1.0]
    for _ in sizes[1:]:
        found.append(found[-1] * draw.uniform(0.6, 0.9))
    return found


# Times ----------------------------------------------------------------------------------------------------------------


@check(
    points=5,
    todo=1,
    title="steps are timed without warm-up, from a common begin, on the slowest rank",
    look_at="time_steps: warm-up, barrier, clock, steps, clock; then the largest figure of all ranks",
)
def times(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    tick = work("tick", draw.uniform(0.0008, 0.0012))
    unit = tick["labkit:work"][1]
    warmup, repeats = draw.randrange(2, 5), draw.randrange(2, 4)
    # ranks are slow in turn: a barrier in each step would make all steps as long as the slowest rank's; the last rank
    # is the slowest on average
    slow, fast = draw.randrange(7, 10), draw.randrange(2, 4)
    plans = [[slow, fast], [fast, slow], [slow, fast + 2]]
    warm = [[draw.randrange(40, 80) for _ in range(warmup)] for _ in plans]
    counts = [4, warmup, repeats]
    run = ranks(3).call(
        submission.used_by(timed),
        [Args(plan, 0, own, counts, 0, tick) for plan, own in zip(plans, warm, strict=True)],
    )
    wanted = (slow + fast + 2) / 2 * unit
    for rank, value in enumerate(run.values):
        expect(len(value), f"figures on rank {rank}, one for each repeat").equals(repeats)
        for seconds in value:
            expect_close(seconds, wanted, f"seconds of a step on rank {rank}, without messages; rank 2 is the slowest")
        seen = len(run.trace.of(rank, Kind.COMPUTE))
        right = sum(warm[rank]) + repeats * 2 * sum(plans[rank])
        expect(seen, f"units of work of rank {rank} in {warmup} steps of warm-up and {repeats} repeats of 4").equals(
            right
        )
        calls = [event.operation for event in run.trace.collectives(rank)]
        expect(len(calls), f"collectives for {repeats} repeats: {calls}").at_most(repeats + 1)
        expect(run.trace.messages_sent(rank), "messages beside them").equals(0)
    # ranks of a group come late one by one: who begins to count at once counts the waiting for the others
    members = sorted(draw.sample(range(4), 3))
    others = [rank for rank in range(4) if rank not in members]
    given: list[Args | None] = [None] * 4
    for place, rank in enumerate(members):
        given[rank] = Args([20], 40 * place, [], [3, 0, 1], 4, tick, group_of(members))
    for rank in others:
        given[rank] = Args([5], 0, [], [3, 0, 1], 4, tick, group_of(others))
    run = ranks(4).call(submission.used_by(timed), given)
    for rank in members:
        what = f"seconds of a step of three ranks, which come {40 * unit:.3f} s after each other, on rank {rank}"
        expect_close(run.values[rank][0], 20 * unit, what)
    for rank in others:
        expect_close(run.values[rank][0], 5 * unit, f"seconds of a step of another group, on rank {rank}")


def expect_study(submission: Submission, ranks: Ranks, draw: Draw, kind: str, sizes: list[int]) -> None:
    """Expect the efficiencies of a drawn cluster."""
    network = draw.choice(["ethernet-10g", "ethernet-25g"])
    each = draw.randrange(3, 6)
    batch = each if kind == "weak" else each * math.lcm(*sizes)
    share = {n: each if kind == "weak" else batch // n for n in sizes}
    sample, warm = work("sample", draw.uniform(0.0008, 0.0016)), work("warm", 0.2)
    nelements = draw.randrange(800_000, 1_600_000) * (1 if network == "ethernet-10g" else 2)
    counts = [2, draw.randrange(1, 3), 1]
    more = sizes[-1] + 1  # a rank takes no part at all
    run = ranks(more, inter_node=network).call(
        submission.used_by(studied),
        [Args(kind, sizes, batch, counts, sample, warm, nelements=nelements, methods=RATIO)] * more,
    )
    rate = {}
    for n in sizes:
        given = [Args(share[n], 2, nelements, sample)] * n
        alone = ranks(n, inter_node=network).call(submission.used_by(reference), given)
        rate[n] = share[n] / (alone.trace.since_barrier().seconds / 2)
    for rank, value in enumerate(run.values):
        expect(len(value), f"points of a study of {sizes} on rank {rank}").equals(len(sizes))
        for (gpus, samples, step, efficiency, _), n in zip(value, sizes, strict=True):
            what = f"ranks and samples of each, {kind} scaling over {sizes} with a batch of {batch}, on rank {rank}"
            expect([int(gpus), int(samples)], what).equals([n, share[n]])
            what = f"on {n} of {sizes} ranks over {network}, {kind} scaling, on rank {rank}"
            expect_close(step, share[n] / rate[n], f"seconds of a step {what}")
            expect_close(efficiency, rate[n] / rate[sizes[0]], f"efficiency {what}")


@check(
    points=5,
    todo=2,
    title="weak scaling: efficiencies of known clusters within 2 %",
    look_at="weak_scaling: samples of each rank stay; compared with the first point, per GPU",
)
def weak(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    expect_study(submission, ranks, draw, "weak", [1, 2, 4])
    sizes = [1, 2, 4, 8]
    efficiency, first = drawn_efficiency(draw, sizes), draw.uniform(0.05, 0.2)
    batch = draw.randrange(8, 64)
    table: list[list[Any]] = [[n, batch, [first / own], [first]] for n, own in zip(sizes, efficiency, strict=True)]
    calls = [["weak_scaling", sizes[begin:], batch] for begin in (0, 2)]
    seen = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    for begin, values in zip((0, 2), seen, strict=True):
        for n, value, own in zip(sizes[begin:], values, efficiency[begin:], strict=True):
            expect_close(value, own / efficiency[begin], f"efficiency of {n} GPUs, recorded, weak", 1e-6)


@check(
    points=5,
    todo=2,
    title="strong scaling: efficiencies of known clusters within 2 %",
    look_at="strong_scaling: each rank has 1/n of the samples; GPU seconds are compared",
)
def strong(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    expect_study(submission, ranks, draw, "strong", [2, 4])
    sizes = [1, 2, 4, 8]
    efficiency, first = drawn_efficiency(draw, sizes), draw.uniform(0.5, 2)
    batch = 8 * draw.randrange(4, 20)
    table: list[list[Any]] = [
        [n, batch // n, [first / (n * own)], [first / n]] for n, own in zip(sizes, efficiency, strict=True)
    ]
    calls = [["strong_scaling", sizes[begin:], batch] for begin in (0, 2)]
    seen = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    for begin, values in zip((0, 2), seen, strict=True):
        for n, value, own in zip(sizes[begin:], values, efficiency[begin:], strict=True):
            expect_close(value, own / efficiency[begin], f"efficiency of {n} GPUs, recorded, strong", 1e-6)


# What follows from them -----------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=3,
    title="throughput, and exposed communication over computing",
    look_at="samples_per_second, communication_to_computation_ratio: medians of the repeats",
)
def ratios(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    table: list[list[Any]] = []
    for n in (1, draw.randrange(2, 9), draw.randrange(16, 300)):
        alone = [draw.uniform(0.1, 0.2) for _ in range(3)]
        table.append([n, draw.randrange(2, 90), [draw.uniform(0.3, 0.4), draw.uniform(0.2, 0.3), 3.0], alone])
    table.append([4, 8, [0.1, 0.11, 0.12], [0.13, 0.12, 0.14]])  # the clock's noise
    names = ("samples_per_second", "communication_to_computation_ratio")
    calls = [[name, number] for name in names for number in range(len(table))]
    seen = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    for number, (n, batch, steps, alone) in enumerate(table):
        what = f"{n} ranks with {batch} samples, steps of {steps} s, {alone} s without communication"
        expect_close(seen[number], n * batch / median(steps), f"samples per second of {what}", 1e-6)
        ratio = max(0.0, (median(steps) - median(alone)) / median(alone))
        expect_close(seen[number + len(table)], ratio, f"ratio of {what}", 1e-6)
    # measured: a step whose communication takes a drawn part of its computing
    sample = work("sample", 0.002)
    steps = {"nelements": 1_250_000, "methods": RATIO}
    inputs = [Args("weak", [2], 5, [2, 1, 2], sample, work("warm", 0.1), **steps)] * 2
    run = ranks(2, inter_node="ethernet-10g").call(submission.used_by(studied), inputs)
    bare = ranks(2, inter_node="ethernet-10g").call(submission.used_by(reference), [Args(5, 2, 1_250_000, sample)] * 2)
    wanted = bare.trace.since_barrier().seconds / 2 / 0.01 - 1
    expect_close(run.values[0][0][4], wanted, "ratio of a step of 10 ms of computing, and a message of 5 MB")


@check(points=2, todo=3, title="costs of an epoch", look_at="cost_per_epoch: whole steps; all GPUs; hours")
def costs(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    table: list[list[Any]] = [
        [draw.randrange(2, 64), draw.randrange(8, 256), [draw.uniform(0.1, 3)], [0.05]] for _ in range(3)
    ]
    calls: list[list[Any]] = []
    wanted: list[Any] = []
    for number, (n, batch, (seconds,), _) in enumerate(table):
        whole = draw.randrange(3, 40)
        for samples in (whole * n * batch, whole * n * batch + 1):
            price = draw.uniform(0.5, 9)
            steps = math.ceil(samples / (n * batch))
            hours = steps * seconds / 3600
            calls.append(["cost_per_epoch", number, samples, price])
            wanted.append([steps, hours, hours * n, hours * n * price])
    seen = ranks(1).call(submission.used_by(computed), [Args(table, calls)]).values[0]
    for (_, number, samples, price), values, right in zip(calls, seen, wanted, strict=True):
        n, batch, (seconds,), _ = table[number]
        what = f"{samples} samples on {n} GPUs with {batch} each, steps of {seconds:.3f} s, at {price:.2f} dollars"
        for name, value, own in zip(("steps", "hours", "GPU hours", "dollars"), values, right, strict=True):
            expect_close(value, own, f"{name} of {what}", 1e-6)


@check(
    points=3,
    todo=4,
    title="the laws, and what they say of planted curves",
    look_at="amdahl, gustafson, usl, most_useful_gpus",
)
def formulas(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    calls: list[list[Any]] = []
    wanted: list[Any] = []
    for _ in range(4):
        n, serial = float(draw.randrange(2, 500)), draw.uniform(0.01, 0.3)
        contention, coherency = draw.uniform(0.01, 0.2), draw.uniform(1e-5, 1e-3)
        calls += [["amdahl", n, serial], ["gustafson", n, serial], ["usl", n, contention, coherency]]
        calls.append(["most_useful_gpus", contention, coherency])
        wanted += [n / (serial * n + 1 - serial), n - serial * (n - 1)]
        wanted.append(n / (1 + contention * (n - 1) + coherency * n * (n - 1)))
        wanted.append(math.sqrt((1 - contention) / coherency))
    calls += [["most_useful_gpus", 0.9, 0.5], ["amdahl", 1.0, 0.5], ["usl", 1.0, 0.5, 0.5], ["gustafson", 1.0, 0.5]]
    wanted += [1.0] * 4
    seen = ranks(1).call(submission.used_by(laws), [Args([*calls, ["most_useful_gpus", 0.1, 0.0]])]).values[0]
    for (name, *args), value, right in zip(calls, seen, wanted, strict=False):
        expect_close(value, right, f"{name}({', '.join(f'{x:.4g}' for x in args)})", 1e-6)
    expect(seen[-1], "most_useful_gpus(0.1, 0): it grows without end").equals(math.inf)
    # curves that follow a law: the fit must find what was planted
    sizes, rate, batch = [1, 2, 4, 8, 16, 32], draw.uniform(100, 900), 64
    serial, contention, coherency = draw.uniform(0.02, 0.1), draw.uniform(0.01, 0.05), draw.uniform(1e-4, 1e-3)
    plants: dict[str, tuple[Callable[[float], float], str, list[float]]] = {
        "strong": (lambda n: 1 / (serial + (1 - serial) / n), "amdahl", [serial]),
        "weak": (lambda n: n / (1 + contention * (n - 1) + coherency * n * (n - 1)), "usl", [contention, coherency]),
    }
    for kind, (speedup, law, shares) in plants.items():
        each = {n: batch if kind == "weak" else batch // n for n in sizes}
        table: list[list[Any]] = [[n, each[n], [n * each[n] / (rate * speedup(n))], [each[n] / rate]] for n in sizes]
        fits = ranks(1).call(submission.used_by(fitted), [Args(kind, table, batch, [])]).values[0][0]
        found = {name: numbers for name, *numbers in fits}
        expect(sorted(found), f"laws for {kind} scaling").equals(["amdahl" if kind == "strong" else "gustafson", "usl"])
        *numbers, limit = found[law]
        for number, right, name in zip(
            numbers, [rate, *shares], ("samples/s of a GPU", "first share", "second"), strict=False
        ):
            expect_close(number, right, f"{law} fitted to a planted curve of {kind} scaling: {name}")
        if kind == "weak":
            most = math.sqrt((1 - contention) / coherency)
            stated = [int(word.replace(",", "")) for word in limit.split() if word.replace(",", "").isdigit()]
            expect(any(abs(number / most - 1) < 0.06 for number in stated), f"{most:.0f} GPUs named as limit").holds(
                limit
            )


@check(points=1, todo=4, title="reports in four formats mark what was not measured", look_at="report")
def reports(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes, batch = [1, 2, 4, 8], draw.randrange(8, 99)
    table: list[list[Any]] = [[n, batch, [draw.uniform(0.2, 0.4)], [0.1]] for n in sizes]
    formats = ["markdown", "csv", "json", "html"]
    seen = ranks(1).call(submission.used_by(fitted), [Args("weak", table, batch, formats)]).values[0][1:]
    markdown, separated, plain, page = seen
    rows = {
        "markdown": [line.split("|")[1].strip() for line in markdown.splitlines() if line.startswith("| ")],
        "csv": [row["origin"] for row in csv.DictReader(io.StringIO(separated))],
        "json": [point["origin"] for point in json.loads(plain)["points"]],
        "html": [part.split("'")[0] for part in page.split("<tr class='")[1:]],
    }
    for format, origins in rows.items():
        counts = [origins.count(origin) for origin in ("real", "virtual", "predict")]
        expect(counts, f"rows marked real, virtual and predict in {format}").equals([4, 4, 4])
    expect(page.count("data:image/"), "pictures within the HTML page").at_least(1)
    points = json.loads(plain)["points"]
    for point, (n, each, (seconds,), _) in zip(points, table, strict=False):
        expect_close(point["samples_per_second"], n * each / seconds, f"samples per second of {n} GPUs in JSON", 1e-6)
        expect_close(point["efficiency"], table[0][2][0] / seconds, f"efficiency of {n} GPUs in JSON", 1e-6)


@check(points=1, todo=2, title="bad arguments raise ValueError", look_at="the given lines at the beginning must stay")
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = {
        "world_sizes": "world_sizes", "world_sizes grow": "world_sizes", "batch_size": "batch_size",
        "global_batch_size": "global_batch_size", "world_size": "world_size", "make_workload": "make_workload",
        "num_samples": "num_samples", "dollars_per_gpu_hour": "dollars_per_gpu_hour", "format": "format",
        "strategy": "strategy", "steps": "steps",
    }  # fmt: skip
    run = ranks(2).call(submission.used_by(misused), [Args(list(cases))] * 2)
    for value in run.values:
        for (case, name), seen in zip(cases.items(), value, strict=True):
            expect(seen.startswith(f"ValueError: {name}"), f"ValueError that begins with {name}: {case}").holds(seen)
    expect(len(run.trace.collectives()), "collectives before an error").equals(0)
    # who does nothing raises nothing either
    table: list[list[Any]] = [[2, 8, [0.1], [0.1]], [4, 8, [draw.uniform(0.2, 0.3)], [0.1]]]
    (seen,) = ranks(1).call(submission.used_by(computed), [Args(table, [["weak_scaling", [2, 4], 8]])]).values[0]
    expect_close(seen[1], 0.1 / table[1][2][0], "efficiency of 4 GPUs, recorded", 1e-6)
