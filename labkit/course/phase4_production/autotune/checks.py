"""Visible checks and hints of autotune: small memories, valleys and losses that can be followed by hand.

What is measured comes from a rank of its own, the last one, so each question of a search is counted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.course.phase4_production.autotune.given import BUCKET_SIZES
from labkit.course.phase4_production.autotune.scenarios.planted_layouts import PlantedLayouts
from labkit.course.phase4_production.autotune.scenarios.tuning_on_ranks import bucketed, scaled, searched, sized, tuned
from labkit.hardware.gpus import GPUS

# What runs on the ranks -----------------------------------------------------------------------------------------------


def tried(cases: list[list[int]]) -> list[list[Any]]:
    """On a rank: for each number of candidates, and how many fit, return what is found, and what was tried."""
    from labkit.exercises import autotune

    found = []
    for count, fit in cases:
        tries: list[int] = []

        def fits(candidate: int, fit: int = fit, tries: list[int] = tries) -> bool:
            tries.append(candidate)
            return candidate <= fit

        found.append([autotune.largest_that_fits(fits, range(1, count + 1)), tries])
    return found


def costs(gigabytes: list[list[float]]) -> list[list[Any]]:
    """On a rank: return the costs of plans of 3 seconds that need so many GB, on a GPU of 40."""
    from labkit.course.phase4_production.autotune.given import Measurement, TrialLog
    from labkit.exercises import autotune
    from labkit.hardware import topology
    from labkit.predict import Plan

    cluster, found = topology("p4d"), []
    for seconds, needed in gigabytes:

        def measure(plan: Plan, seconds: float = seconds, needed: float = needed) -> Measurement:
            return Measurement(seconds, 1e9 * needed)

        fails, cost = autotune.cost_of(Plan(8, data=8), TrialLog(measure, 9), cluster)
        found.append([bool(fails), float(cost)])
    return found


# Batch size -----------------------------------------------------------------------------------------------------------


@check(points=2, todo=1, title="largest_that_fits: double, then bisect", look_at="largest_that_fits: both loops")
def bisection(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[list[int], list[Any], str]] = [
        ([100, 11], [11, [1, 2, 4, 8, 16, 12, 10, 11]], "11 of 100 fit"),
        ([100, 1], [1, [1, 2]], "1 of 100 fits"),
        ([100, 0], [None, [1]], "none fits"),
        ([5, 9], [5, [1, 2, 4, 5]], "all of 5 fit"),
    ]
    (results,) = ranks(1).call(submission.used_by(tried), [Args([case for case, _, _ in cases])]).values
    for ((_, fit), wanted, text), (largest, tries) in zip(cases, results, strict=True):
        expect(largest, f"largest that fits, where {text}").equals(wanted[0])
        expect(tries[0] if tries else 0, f"first candidate that is tried, where {text}").equals(1)
        most = 2 * math.ceil(math.log2(min(fit, 5 if "5" in text else fit) + 1)) + 1
        expect(len(tries), f"number of tries, where {text}; the solution's are {wanted[1]}").at_most(most)


@check(points=4, todo=1, title="find_batch_size: memory of every rank", look_at="find_batch_size: `fits`")
def batch_size(submission: Submission, ranks: Ranks) -> None:
    """Rank 0 has 8 MB and takes 100 kB a sample, rank 1 has 6 MB."""
    hardware: dict[str, Any] = {
        "account": True,
        "gpu": [replace(GPUS["t4"], memory_gb=size) for size in (0.008, 0.006)],
    }
    for smallest, right, error in ((1, 53, ""), (70, None, "OutOfMemoryError")):
        inputs = [Args(100, 500, smallest, 9999, 1 << 40, work("trial", 1e-6)) for _ in range(2)]
        run = ranks(2, **hardware).call(submission.used_by(sized), inputs)
        if run.trace.clock != "modelled":
            raise NotMeasurable("lack of memory is checked on virtual ranks, whose GPUs have 8 and 6 MB")
        what = f"with smallest={smallest}, where 73 samples fit on rank 0, and 53 on rank 1"
        hint = "all ranks must know whether the batch was too large on one of them"
        expect([value[0] for value in run.values], f"batch size on both ranks, {what}", look_at=hint).equals(
            [right] * 2
        )
        expect([value[3] for value in run.values], f"errors, {what}").equals([error] * 2)
        held = [max(value[1], value[2]) for value in run.values]
        hint = "the error refers to the step's tensors until its `except` ends; then `given.release_memory()`"
        expect(held, "bytes that failed steps leave behind", look_at=hint).equals([0, 0])


@check(points=1, todo=1, title="find_batch_size: other errors are raised", look_at="`given.is_out_of_memory(error)`")
def other_errors(submission: Submission, ranks: Ranks) -> None:
    inputs = [Args(10, 10, 1, 9999, 5, work("trial", 1e-6))]
    (value,) = ranks(1, account=True).call(submission.used_by(sized), inputs).values
    expect(value[3], "error, where the step raises RuntimeError for a batch of 5 or more").equals("RuntimeError")


# Buckets and recipes --------------------------------------------------------------------------------------------------


@check(points=4, todo=2, title="tune_bucket_size: the valley of the slowest rank", look_at="tune_bucket_size")
def buckets(submission: Submission, ranks: Ranks) -> None:
    """Gradients of 100 MB: from 128 MB on times are the same. Rank 0's valley is at 4 MB, that of rank 1 at 32 MB."""

    def seconds(asker: int, size: float) -> float:
        used, valley = min(size, 100.0), (4.0, 32.0)[asker]
        return 0.1 + 0.01 * (used / valley + valley / used)

    rows = [[asker, size, seconds(asker, size)] for asker in range(2) for size in BUCKET_SIZES]
    together = group_of([0, 1])
    inputs = [Args(True, [], group=together), Args(True, [], group=together), Args(False, rows)]
    first, second, log = ranks(3).call(submission.used_by(bucketed), inputs).values
    slowest = {size: max(seconds(0, size), seconds(1, size)) for size in BUCKET_SIZES}
    right = min(BUCKET_SIZES, key=slowest.__getitem__)
    hint = "`given.highest(measure(size), group)`: with their own times ranks choose differently"
    expect([first, second], "bucket size in MB on both ranks", look_at=hint).equals([right] * 2)
    hint = "keep what is measured: `functools.cache`; two neighbours halve the sizes that are left"
    for rank, measured in enumerate(log):
        expect(len(measured), f"measurements of rank {rank}, for 13 sizes", look_at=hint).at_most(8)
        again = len(measured) - len({size for (size,) in measured})
        expect(again, f"sizes that rank {rank} measured again", look_at=hint).equals(0)
    rows = [[0, size, 1 + 1 / min(size, 1)] for size in BUCKET_SIZES]
    first, _ = (
        ranks(2).call(submission.used_by(bucketed), [Args(True, [], group=group_of([0])), Args(False, rows)]).values
    )
    hint = "equal neighbours: all gradients are in one bucket, and the valley is on the left"
    expect(first, "bucket size in MB, for gradients of 1 MB: larger ones are not better", look_at=hint).equals(1.0)


@check(points=2, todo=2, title="scale_recipe: as many samples, a higher rate", look_at="scale_recipe")
def recipes(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[list[Any], list[Any], str]] = [
        (
            [[256, 0.1, 450_000, 25_000, "sgd"], 256, 32, None],
            [8192, 3.2, 14_063, 782, "sgd"],
            "Goyal et al.: 256 GPUs, 32 each",
        ),
        ([[256, 0.001, 1000, 100, "adam"], 16, 64, None], [1024, 0.002, 250, 25, "adam"], "Adam, 4 times the batch"),
        ([[256, 0.1, 1000, 0, "sgd"], 64, 32, 512], [512, 0.2, 500, 0, "sgd"], "64 GPUs, max_batch=512: 8 each"),
        ([[256, 0.1, 1000, 10, "sgd"], 1, 64, None], [64, 0.025, 4000, 40, "sgd"], "one GPU: a smaller batch"),
    ]
    (results,) = ranks(1).call(submission.used_by(scaled), [Args([case for case, _, _ in cases])]).values
    for (_, wanted, text), made in zip(cases, results, strict=True):
        for place, name in enumerate(("batch size", "learning rate", "steps", "steps of the warm-up")):
            expect(made[place], f"{name}: {text}").close_to(wanted[place], rel=1e-9)
        expect(made[4], f"optimizer: {text}").equals(wanted[4])


# Successive halving ---------------------------------------------------------------------------------------------------


def rungs_of(log: list[list[float]]) -> list[tuple[int, int]]:
    """Return the steps of each rung, and the number of its trials."""
    steps = [int(entry[0]) for entry in log]
    return [(count, steps.count(count)) for count in sorted(set(steps))]


@check(points=4, todo=3, title="tune: 9, 3, 1 trials", look_at="tune: how many rungs, how many steps, who goes on")
def halving(submission: Submission, ranks: Ranks) -> None:
    """Nine learning rates, the seventh one is best from the first step on; then the two best fail."""
    rates = [float(number) for number in range(1, 10)]
    losses: list[list[Any]] = [[rate, [1 + abs(rate - 6.9) / 10, 1.0, math.inf, 0]] for rate in rates]
    space = {"rate": rates}
    for budget, wanted in ((60, [(2, 9), (6, 3), (18, 1)]), (26, [(4, 3), (12, 1)]), (120, [(4, 9), (12, 3), (36, 1)])):
        inputs = [Args(True, space, budget, [0], 3, []), Args(False, space, budget, [0], 3, losses)]
        results, (log,) = ranks(2).call(submission.used_by(tuned), inputs).values
        expect(rungs_of(log), f"steps of each rung, and its trials, with a budget of {budget}").equals(wanted)
        if budget == 60:
            best = [[7.0], 1.01 + 1 / math.sqrt(18), 18]
            expect(results[0][0], "configuration, loss and steps of the result").close_to(best)
    for rate in (1, 2, 3, 4, 6, 7, 8, 9):
        losses[rate - 1][1][2:] = [6 if rate == 6 else 1, {7: 1, 8: 3, 9: 4}.get(rate, 2)]
    inputs = [Args(True, space, 60, [0], 3, []), Args(False, space, 60, [0], 3, losses)]
    results, (log,) = ranks(2).call(submission.used_by(tuned), inputs).values
    what = "only rate 5 never fails; 6 does from 6 steps on, others are NaN or infinite or run out of memory at once"
    hint = "a trial with an infinite loss does not go on, even if there is room"
    expect(rungs_of(log), f"steps of each rung, and its trials: {what}", look_at=hint).equals([(2, 9), (6, 2), (18, 1)])
    expect(results[0][0], f"configuration, loss and steps: {what}", look_at=hint).close_to(
        [[5.0], 1.19 + 1 / math.sqrt(18), 18]
    )


@check(points=2, todo=3, title="tune: the seed decides", look_at="`given.configurations(space, count, seed)`")
def seeded(submission: Submission, ranks: Ranks) -> None:
    space = {"rate": ["log", 1e-4, 1.0], "dropout": ["uniform", 0.1, 0.5]}
    inputs = [Args(True, space, 27, [4, 4, 5], 3, []), Args(False, space, 27, [4, 4, 5], 3, [])]
    results, (log,) = ranks(2).call(submission.used_by(tuned), inputs).values
    expect(len(log), "trials of three runs with a budget of 27").equals(3 * 13)
    runs = log[:13], log[13:26], log[26:]
    expect([runs[0] == runs[1], runs[0] == runs[2]], "seed 4 repeats its trials, seed 5 has the same").equals(
        [True, False]
    )
    expect([unchanged for _, unchanged in results], "global random numbers are as before").equals([True] * 3)


# Layouts --------------------------------------------------------------------------------------------------------------


@check(
    points=1, todo=4, title="cost_of: what fits comes first", look_at="cost_of: bytes and GB; which number counts when"
)
def fitting(submission: Submission, ranks: Ranks) -> None:
    cases = [[3.0, 39.0], [2.0, 41.0], [1.0, 90.0], [9.0, 40.0]]
    (results,) = ranks(1).call(submission.used_by(costs), [Args(cases)]).values
    expect([fails for fails, _ in results], "plans of 39, 41, 90 and 40 GB on a GPU of 40 do not fit").equals(
        [False, True, True, False]
    )
    order = sorted(range(4), key=lambda place: results[place])
    expect(order, "order by cost of plans of 3 s (39 GB), 2 s (41 GB), 1 s (90 GB), 9 s (40 GB)").equals([0, 3, 1, 2])


PROBLEMS = [
    PlantedLayouts("gpt2-xl", "workstation-4090", 2, 8),
    PlantedLayouts("llama2-7b", "cloud-l4", 2, 4, (1, 4, 1), 1.1),
    PlantedLayouts("gpt-1.3b", "dgx-1", 1, 8),
]
"""The second one's network has a quarter of its rate by data sheet, and layouts need a tenth more memory."""


def searches(submission: Submission, ranks: Ranks, what: str, most: int) -> None:
    """Search in both problems; expect what fits, is near the best, and takes no more measurements."""
    tables = [[[list(plan), list(measured)] for plan, measured in problem.table.items()] for problem in PROBLEMS]
    given = [problem.arguments() for problem in PROBLEMS]
    run = ranks(2).call(submission.used_by(searched), [Args(True, what, given, []), Args(False, what, [], tables)])
    plans, (log,) = run.values
    for number, problem in enumerate(PROBLEMS):
        text = f"{problem.model_name} on {problem.cluster.world_size} GPUs of {problem.preset}"
        if isinstance(plans[number], str):
            expect(plans[number], f"{text}: plan").equals("a plan that fits")
        chosen = problem.table[tuple(plans[number])]
        gigabytes = problem.capacity / 1e9
        hint = "cost_of: what fits comes before what does not"
        expect(chosen.nbytes / 1e9, f"{text}: memory of the plan, of {gigabytes:g} GB", look_at=hint).at_most(gigabytes)
        best = problem.best(problem.layouts if what == "layout" else problem.strategies)
        expect(chosen.seconds, f"{text}: step of the plan, within 5 % of the best", unit="seconds").at_most(1.05 * best)
        expect(sum(entry[0] == number for entry in log), f"{text}: plans that were measured").at_most(most)


@check(points=2, todo=4, title="choose_strategy: the fastest that fits", look_at="choose_strategy: every strategy")
def strategy(submission: Submission, ranks: Ranks) -> None:
    searches(submission, ranks, "strategy", 20)


@check(points=3, todo=4, title="search_layout: near the best, by 96 measurements", look_at="search_layout")
def layout(submission: Submission, ranks: Ranks) -> None:
    searches(submission, ranks, "layout", 96)


HINTS = {
    1: [
        "11 of 100 fit. You know nothing yet: which batch is the cheapest to try? After 1, 2, 4 and 8 fit and 16 does "
        "not, which sizes are left? And when is the memory of a failed step free: in its `except`, or after it?",
        "`largest_that_fits`: a first loop moves `low, high` to `high, 2 * high + 1` (not beyond the last candidate) "
        "while `fits(candidates[high])`; a second one halves what is between them. In `fits`, only note in the "
        "`except` that it failed; free memory and agree with the other ranks after it.",
        "`while high < len(candidates) and fits(candidates[high]): low, high = high, max(high + 1, min(2 * high + 1, "
        "len(candidates) - 1))`, then `while high - low > 1`. In `fits`: `except Exception as error:`, `if not "
        "given.is_out_of_memory(error): raise`, `failed = True`; below it `given.release_memory()` and `return not "
        "given.highest(failed, group)`.",
    ],
    2: [
        "Times fall, then rise. You measure two neighbours, and the right one is slower: where can the valley not be? "
        "For the recipe: which number of samples stays the same, and which per step?",
        "Keep `low` and `high`, the first and the last size that may be best; compare the middle one with the next. "
        "Equal ones: go left. A step takes as long as on the slowest rank: `given.highest`. Steps are scaled with "
        "`recipe.batch_size / batch_size`, the learning rate with its inverse, or the root of that.",
        "`seconds = cache(lambda place: given.highest(measure(sizes[place]), group))`; `low, high = (low, middle) if "
        "seconds(middle) <= seconds(middle + 1) else (middle + 1, high)`. `ceil(recipe.steps * recipe.batch_size / "
        "batch_size)`, and the same for the warm-up; `batch_per_gpu = min(batch_per_gpu, max_batch // num_gpus)`.",
    ],
    3: [
        "9 trials of 2 steps, 3 of 6, one of 18: how many steps does each rung take? So what do r rungs cost, if the "
        "first has `reduction ** (r - 1)` trials of one step?",
        "Raise `rungs` while `(rungs + 1) * reduction**rungs <= budget`, and while not all configurations are in the "
        "first rung. Divide the budget by `rungs * reduction ** (rungs - 1)`. On each rung run all that are left, sort "
        "by loss, keep the best `len(left) // reduction` (one at least) whose loss is below `inf`.",
        "`rung = [given.run_trial(objective, configuration, steps) for configuration in left]`; `trials += rung`; "
        "`ranked = [trial.configuration for trial in sorted(rung, key=lambda one: one.loss) if trial.loss < inf]`; "
        "`left, steps = ranked[: max(1, len(left) // reduction)], steps * reduction`.",
    ],
    4: [
        "A layout that fits in 9 s is better than one that would take 1 s in memory that is not there. Of two that do "
        "not fit, which one is nearer to fitting? Tuples are compared by their first item, then by the second.",
        "`cost_of`: `(not fits, seconds if fits else nbytes)`. `search_layout`: sort `space.splits()` by cost; from "
        "each of the best six improve one axis after the other, taking the best of `space.along(plan, axis)`; then "
        "improve the best of all along every axis until nothing changes. `choose_strategy`: `largest_that_fits` on "
        "`space.strategy(name)[first:]`, where `first` is the place of what was found for the strategy before.",
        "`cost = partial(cost_of, log=log, cluster=cluster)`; `with suppress(given.TrialsUsedUp):` around `for plan in "
        "sorted(space.splits(), key=cost)[:6]:`, `for axis in ('recompute', 'zero', 'microbatch'): plan = "
        "min(space.along(plan, axis), key=cost)`; then `best = min(log.found, key=cost)`, and repeat `best = min((plan "
        "for axis in space.axes for plan in space.along(best, axis)), key=cost)`; `fitting` are the plans of "
        "`log.found` whose `cost(plan)[0]` is false.",
    ],
}
