"""Hidden rubric of autotune: 25 points, 13 for what is found, 12 for trials, memory, agreement and determinism.

What is measured comes from a rank of its own, on which only this file's functions run: the learner's code knows no
time and no loss that it has not asked for, and each question is counted there. The clusters are slower and fuller than
their data sheets, so the best layout by `labkit.predict` is often a wrong one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from labkit.checks import Args, CheckFailed, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase4_production.autotune.given import BUCKET_SIZES
from labkit.course.phase4_production.autotune.scenarios.planted_layouts import PlantedLayouts
from labkit.course.phase4_production.autotune.scenarios.tuning_on_ranks import bucketed, scaled, searched, sized, tuned
from labkit.hardware.gpus import GPUS
from labkit.trace import Kind

FORBIDDEN = {"labkit.predict.search", "labkit.predict.predict"}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
CLOSE = 1.05
"""What is found may take this many times as long as the best of all."""
TRIALS = 96
STRATEGY_TRIALS = 20

SLOW_NETWORKS = [
    PlantedLayouts("gpt-1.3b", "cloud-t4", 4, 4, (1, 8, 1.2)),
    PlantedLayouts("gpt-13b", "dgx-a100", 2, 8, (1, 8, 1.2)),
    PlantedLayouts("gpt-39b", "p5", 4, 4, (1, 4, 1), 1.1),
    PlantedLayouts("gpt-3.6b", "cloud-t4", 4, 4, (1, 8, 1.2)),
    PlantedLayouts("llama2-7b", "cloud-l4", 4, 4, (1, 8, 1.2)),
    PlantedLayouts("gpt-6.7b", "workstation-4090", 4, 8, (1, 8, 1.2)),
    PlantedLayouts("llama2-70b", "dgx-h100", 4, 4, (1, 8, 1.2)),
]
"""On each of them the best layout by data sheets takes at least 1.2 times as long as the best one."""
FULL = [
    PlantedLayouts("llama2-7b", "cloud-l4", 4, 4, (1, 4, 1), 1.1),
    PlantedLayouts("llama2-13b", "p4d", 2, 8, (1, 4, 1), 1.1),
    PlantedLayouts("gpt-6.7b", "workstation-4090", 4, 8, (1, 4, 1), 1.1),
    PlantedLayouts("gpt-6.7b", "workstation-4090", 4, 8, (2, 1, 1.3), 1.05),
]
"""On each of them the best layout by data sheets runs out of memory."""
AS_TOLD = [
    PlantedLayouts("gpt-6.7b", "dgx-1", 2, 8, (3, 2, 1), 1.1),
    PlantedLayouts("gpt-13b", "p4d", 4, 4),
]
"""On each of them the best layout by data sheets is the best one, and the fastest one of all does not fit."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    from labkit.course.phase4_production.autotune.given import Recipe
    from labkit.exercises import autotune
    from labkit.hardware import topology
    from labkit.predict import model

    gpt, cluster = model("gpt2-xl"), topology("dgx-a100")
    recipe = Recipe(8, 0.1, 10)
    tried = {
        "": lambda: autotune.search_layout(gpt, cluster, trials=40),
        "smallest": lambda: autotune.find_batch_size(lambda size: None, smallest=0),
        "largest": lambda: autotune.find_batch_size(lambda size: None, smallest=4, largest=3),
        "sizes": lambda: autotune.tune_bucket_size(lambda size: 1.0, [4.0, 2.0]),
        "num_gpus": lambda: autotune.scale_recipe(recipe, 0, 4),
        "max_batch": lambda: autotune.scale_recipe(recipe, 8, 4, 7),
        "budget": lambda: autotune.tune(lambda one, steps: 1.0, {"x": [1]}, 0),
        "space": lambda: autotune.tune(lambda one, steps: 1.0, {"x": []}, 9),
        "reduction": lambda: autotune.tune(lambda one, steps: 1.0, {"x": [1]}, 9, reduction=1),
        "model": lambda: autotune.search_layout("gpt2-xl", cluster),
        "cluster": lambda: autotune.choose_strategy(gpt, "dgx-a100"),
        "trials": lambda: autotune.search_layout(gpt, cluster, trials=0),
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


# Batch size -----------------------------------------------------------------------------------------------------------


def memories(*megabytes: float) -> dict[str, Any]:
    """Hardware whose nodes, of one GPU each, have so many MB."""
    return {"account": True, "gpu": [replace(GPUS["t4"], memory_gb=size / 1000) for size in megabytes]}


def trials_of(run: Run, rank: int) -> int:
    return sum(event.operation == "trial" for event in run.trace.of(rank, Kind.COMPUTE))


def most_trials(found: int) -> int:
    return 2 * math.ceil(math.log2(found + 1)) + 1


@check(points=3, todo=1, title="the largest batch that fits every rank, found by few steps", look_at="who decides")
def batches(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    each = [draw.choice([20, 32, 50, 90]) for _ in range(3)]
    fixed = [draw.randrange(200, 2000) for _ in range(3)]
    fits = draw.sample(range(40, 120), 3)
    sizes = [
        1024e-6 * (held + kilobytes * (most + 0.5)) for held, kilobytes, most in zip(fixed, each, fits, strict=True)
    ]
    for largest in (100_000, min(fits) - draw.choice([1, 2, 5])):
        run = ranks(3, **memories(*sizes)).call(
            submission.used_by(sized),
            [
                Args(kilobytes, held, 1, largest, 1 << 40, work("trial", 1e-6))
                for kilobytes, held in zip(each, fixed, strict=True)
            ],
        )
        right = min(*fits, largest)
        expect([value[3] for value in run.values], "errors").equals([""] * 3)
        what = f"batch size on each rank, where {fits} samples fit and largest={largest}"
        found = [value[0] for value in run.values]
        expect(found, what, look_at="every rank needs to know what did not fit on another").equals([right] * 3)
        for rank in range(3):
            expect(trials_of(run, rank), f"steps that rank {rank} tried to find {right}").at_most(most_trials(right))


@check(
    points=2,
    todo=1,
    title="nothing is left of a step that ran out of memory",
    look_at="how long the error is referred to",
)
def leftovers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for smallest in (draw.choice([1, 3]), 5000):
        inputs = [Args(draw.choice([20, 50]), 500, smallest, 9999, 1 << 40, work("trial", 1e-6)) for _ in range(2)]
        run = ranks(2, **memories(8, 9)).call(submission.used_by(sized), inputs)
        for rank, (_, held, after, failure) in enumerate(run.values):
            what = f"rank {rank}, smallest={smallest}"
            expect(failure, f"{what}: error").equals("OutOfMemoryError" if smallest == 5000 else "")
            expect(held, f"{what}: bytes of earlier steps that are held when a step begins").at_most(0)
            expect(after, f"{what}: bytes held after the function").at_most(0)


@check(points=1, todo=1, title="an error of the model is no lack of memory", look_at="which errors mean it")
def other_errors(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    breaks_at = draw.choice([3, 6, 20])
    run = ranks(1, **memories(10)).call(
        submission.used_by(sized), [Args(20, 500, 1, 9999, breaks_at, work("trial", 1e-6))]
    )
    expect(run.values[0][3], f"error, when the step raises RuntimeError from a batch of {breaks_at} on").equals(
        "RuntimeError"
    )


# Buckets and recipes --------------------------------------------------------------------------------------------------


def valley(draw: Draw, total_mb: float, best: float) -> dict[float, float]:
    """Return seconds by bucket size: latency falls with it, what is sent after backward rises; lowest near `best`."""
    base, scale = draw.uniform(0.01, 0.05), draw.uniform(0.02, 0.1)
    used = {size: min(size, total_mb) for size in BUCKET_SIZES}
    return {size: base + scale * (best / one + one / best) for size, one in used.items()}


@check(points=3, todo=2, title="the bucket size, by 8 measurements, the same on all ranks", look_at="tune_bucket_size")
def buckets(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    """The ranks' own valleys are far apart: a straggler decides."""
    for total, places in ((1024.0, (0.6, 200.0)), (draw.choice([6.0, 12.0]), (0.7, 2.5)), (0.7, (64.0, 512.0))):
        curves = [valley(draw, total, place * draw.uniform(0.8, 1.25)) for place in draw.sample(places, 2)]
        rows = [[asker, size, seconds] for asker, curve in enumerate(curves) for size, seconds in curve.items()]
        together = group_of([0, 1])
        given = [Args(True, [], group=together), Args(True, [], group=together), Args(False, rows)]
        run = ranks(3).call(submission.used_by(bucketed), given)
        slowest = {size: max(curve[size] for curve in curves) for size in BUCKET_SIZES}
        first, second, log = run.values
        expect(first, "bucket size in MB on rank 0, compared with rank 1").equals(second)
        what = f"step with the chosen buckets, of gradients of {total:g} MB"
        expect(slowest.get(first, math.inf), what, unit="seconds").at_most(CLOSE * min(slowest.values()))
        for rank, asked in enumerate(log):
            expect(len(asked), f"sizes that rank {rank} measured, of {len(BUCKET_SIZES)}").at_most(8)
            expect(len({tuple(one) for one in asked}), "sizes that were measured once only").equals(len(asked))


@check(points=2, todo=2, title="batch and learning rate for more GPUs", look_at="scale_recipe: what stays the same")
def recipes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases: list[list[Any]] = []
    for optimizer in ("sgd", "adam"):
        for most in (None, draw.choice([300, 500])):
            fields = [draw.choice([64, 256]), draw.uniform(1e-4, 1e-1), draw.randrange(900, 5000), 77, optimizer]
            cases.append([fields, draw.choice([3, 8, 16, 64]), draw.choice([1, 12, 32]), most])
    (found,) = ranks(1).call(submission.used_by(scaled), [Args(cases)]).values
    for ((batch, rate, steps, warmup, optimizer), gpus, per_gpu, most), made in zip(cases, found, strict=True):
        larger = gpus * min(per_gpu, (most or 1 << 30) // gpus)
        factor = larger / batch
        what = f"{optimizer}, batch {batch}, {gpus} GPUs with {per_gpu} samples, max_batch={most}: "
        expect(made[0], what + "batch size").equals(larger)
        expect(made[1], what + "learning rate").close_to(rate * (factor if optimizer == "sgd" else math.sqrt(factor)))
        expect(made[2], what + "steps").equals(-(-steps * batch // larger))
        expect(made[3], what + "steps of the warm-up").equals(-(-warmup * batch // larger))
        expect(made[4], what + "optimizer").equals(optimizer)


# Successive halving ---------------------------------------------------------------------------------------------------


def ask_tuner(
    submission: Submission, ranks: Ranks, space: Any, budget: int, seeds: list[int], reduction: int, losses: list[Any]
) -> tuple[list[Any], list[list[float]]]:
    """Return the results of the tuner, and all that it has asked for: steps, and the configuration."""
    arguments = (space, budget, seeds, reduction, losses)
    run = ranks(2).call(submission.used_by(tuned), [Args(True, *arguments[:-1], []), Args(False, *arguments)])
    found, (log,) = run.values
    return found, log


def rungs_of(log: list[list[float]]) -> list[tuple[int, int]]:
    """Return the steps of each rung, and the number of its trials."""
    steps = [int(one[0]) for one in log]
    return [(count, steps.count(count)) for count in sorted(set(steps))]


def planted(draw: Draw, rates: list[float], widths: list[float]) -> list[list[Any]]:
    """Return a row for each configuration: some are good early, none of the best is bad then."""
    places = draw.sample(range(len(rates) * len(widths)), len(rates) * len(widths))
    configurations = [[rate, width] for rate in rates for width in widths]
    return [
        [*one, [1 + 0.06 * place, draw.uniform(0.9, 1.1), math.inf, 0.0]]
        for one, place in zip(configurations, places, strict=True)
    ]


@check(points=3, todo=3, title="the best configuration; bad ones stop early", look_at="tune: rungs, and who goes on")
def halving(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    rates = sorted(draw.uniform(1e-3, 1) for _ in range(9))
    for reduction, widths, rungs in ((3, [16.0, 32.0, 64.0], 4), (2, [16.0, 32.0], 5)):
        count = reduction ** (rungs - 1)
        each = draw.randrange(2, 6)
        budget = rungs * count * each + draw.randrange(count)
        losses = planted(draw, rates, widths)
        grid = {"learning_rate": rates, "width": widths}
        if count < len(losses):  # too few can be tried: all that are must come from the space
            losses = losses[: count // len(widths) * len(widths)]
            grid["learning_rate"] = rates[: count // len(widths)]
        found, log = ask_tuner(submission, ranks, grid, budget, [draw.getrandbits(20)], reduction, losses)
        expect(isinstance(found[0][0], list), f"a configuration is found, not {found[0][0]!r}").equals(True)
        values, loss, steps = found[0][0]
        wanted = [(each * reduction**rung, count // reduction**rung) for rung in range(rungs)]
        what = f"budget {budget}, reduction {reduction}, {len(losses)} configurations"
        expect(sum(int(one[0]) for one in log), f"{what}: steps of all trials").at_most(budget)
        expect(rungs_of(log), f"{what}: steps of each rung, and its trials").equals(wanted)
        longest = wanted[-1][0]
        best = min(row[2][0] + row[2][1] / math.sqrt(longest) for row in losses)
        own = next((row[2] for row in losses if row[:2] == values), None)
        expect(own is not None, f"{what}: the result is a configuration of the space").equals(True)
        reached = own[0] + own[1] / math.sqrt(longest) if own else math.inf
        expect(reached, f"{what}: loss of the result").at_most(CLOSE * best)
        expect([loss, steps], f"{what}: loss and steps that are reported").close_to([reached, longest])


@check(points=1, todo=3, title="trials that fail never go on", look_at="which losses are infinite, and who is kept")
def failing(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    rates = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    good, late, *bad = draw.sample(range(9), 9)
    rows = {good: [1.0, 1.0, math.inf, 0], late: [0.1, 1.0, 6, draw.choice([1, 2, 3, 4])]}
    rows |= {place: [0.1, 1.0, 1, 1 + number % 4] for number, place in enumerate(bad)}
    losses = [[rate, rows[place]] for place, rate in enumerate(rates)]
    found, log = ask_tuner(submission, ranks, {"rate": rates}, 3 * 9 * 2, [draw.getrandbits(20)], 3, losses)
    what = "9 configurations; 7 fail at once (out of memory, NaN, infinite), one at 6 steps"
    expect(found[0][0], f"{what}: configuration, loss, steps").close_to([[rates[good]], 1 + 1 / math.sqrt(18), 18])
    expect(rungs_of(log), f"{what}: steps of each rung, and its trials").equals([(2, 9), (6, 2), (18, 1)])
    every = [[rate, [0.1, 1.0, 1, 1 + place % 4]] for place, rate in enumerate(rates)]
    found, _ = ask_tuner(submission, ranks, {"rate": rates}, 3 * 9 * 2, [1], 3, every)
    expect(found[0][0], "error, where all configurations fail").equals("RuntimeError")


@check(points=2, todo=3, title="the same seed, the same trials", look_at="where random numbers come from")
def seeded(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    space = {"rate": ["log", 1e-4, 1.0], "dropout": ["uniform", 0.1, 0.5], "width": [16.0, 32.0, 64.0]}
    one, other = draw.sample(range(1000), 2)
    found, log = ask_tuner(submission, ranks, space, 4 * 27, [one, one, other], 3, [])
    share = len(log) // 3
    expect(len(log), "trials of three runs").equals(3 * (27 + 9 + 3 + 1))
    runs = [log[:share], log[share : 2 * share], log[2 * share :]]
    expect(runs[0] == runs[1], "two runs with one seed ask for the same trials").equals(True)
    expect(runs[0] == runs[2], "a run with another seed asks for the same trials").equals(False)
    expect(len({tuple(trial[1:]) for trial in runs[0]}), "different configurations of a run").equals(27)
    expect([unchanged for _, unchanged in found], "global random numbers are as before").equals([True] * 3)


# Layouts --------------------------------------------------------------------------------------------------------------


def ask_search(
    submission: Submission, ranks: Ranks, what: str, problems: list[PlantedLayouts]
) -> tuple[list[Any], list[list[tuple[float, ...]]]]:
    """Return what is found for each problem, and the plans that were measured for it."""
    tables = [[[list(plan), list(found)] for plan, found in problem.table.items()] for problem in problems]
    given = [problem.arguments() for problem in problems]
    run = ranks(2).call(submission.used_by(searched), [Args(True, what, given, []), Args(False, what, [], tables)])
    found, (log,) = run.values
    return found, [[tuple(one[1:]) for one in log if one[0] == number] for number in range(len(problems))]


def expect_found(
    problem: PlantedLayouts, found: Any, asked: list[tuple[float, ...]], keys: set[tuple[float, ...]], most: int
) -> None:
    what = f"{problem.model_name} on {problem.cluster.world_size} GPUs of {problem.preset}: "
    expect(isinstance(found, list), what + f"a plan is found, not {found!r}"[:200]).equals(True)
    chosen = problem.table.get(tuple(found))
    if chosen is None:
        raise CheckFailed(what + "a plan of the space", f"another one: {found}")
    gigabytes = problem.capacity / 1e9
    expect(chosen.nbytes / 1e9, what + f"memory of the plan, of {gigabytes:g} GB").at_most(gigabytes)
    expect(chosen.seconds, what + "step of the plan", unit="seconds").at_most(CLOSE * problem.best(keys))
    expect(len(asked), what + f"plans that were measured, of {len(keys)}").at_most(most)


@check(points=3, todo=4, title="the layout, within 5 % of the best of all", look_at="search_layout")
def layouts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    problems = [*draw.sample(SLOW_NETWORKS, 2), draw.choice(AS_TOLD)]
    found, asked = ask_search(submission, ranks, "layout", problems)
    for problem, one, log in zip(problems, found, asked, strict=True):
        expect_found(problem, one, log, problem.layouts, TRIALS)


@check(points=2, todo=4, title="never a layout that runs out of memory", look_at="cost_of: what fits comes first")
def out_of_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    problems = draw.sample(FULL, 2)
    nothing_fits = PlantedLayouts("gpt-39b", "cloud-l4", 1, 4)
    found, asked = ask_search(submission, ranks, "layout", [*problems, nothing_fits])
    for problem, one, log in zip(problems, found, asked, strict=False):
        expect_found(problem, one, log, problem.layouts, TRIALS)
    expect(str(found[2])[:10], "39 billion parameters on 8 GPUs of 24 GB").equals("ValueError")


@check(
    points=2,
    todo=4,
    title="the strategy, by 20 measurements",
    look_at="choose_strategy: all of them, each with its microbatch",
)
def strategies(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    problems = [draw.choice(SLOW_NETWORKS), draw.choice(FULL), draw.choice(AS_TOLD)]
    found, asked = ask_search(submission, ranks, "strategy", problems)
    for problem, one, log in zip(problems, found, asked, strict=True):
        expect_found(problem, one, log, problem.strategies, STRATEGY_TRIALS)


@check(points=1, todo=4, title="bad arguments raise ValueError", look_at="the checks at the beginning of each function")
def bad_arguments(submission: Submission, ranks: Ranks) -> None:
    cases = [
        "smallest", "largest", "sizes", "num_gpus", "max_batch", "budget", "space", "reduction", "model", "cluster",
        "trials",
    ]  # fmt: skip
    ((right, *found),) = ranks(1).call(submission.used_by(misused), [Args(["", *cases])]).values
    expect(right, "error, where nothing is wrong").equals("nothing")
    for case, text in zip(cases, found, strict=True):
        expect(text.startswith(f"ValueError: {case}"), f"wrong {case}: {text[:80]}").equals(True)
