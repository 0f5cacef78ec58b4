"""Right: a recursive bisection, all neighbours of the best layouts in turn, rungs from the last one backwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil, inf, sqrt
from typing import TypeVar

import torch
from torch.distributed import ProcessGroup

from labkit.course.phase4_production.autotune import given
from labkit.course.phase4_production.autotune.given import Measure, Objective, Space, TuningResult
from labkit.hardware import Topology
from labkit.predict import Plan
from labkit.predict.describe import Description

__all__ = ["choose_strategy", "find_batch_size", "scale_recipe", "search_layout", "tune", "tune_bucket_size"]
T = TypeVar("T")


def largest_that_fits(fits: Callable[[T], bool], candidates: Sequence[T]) -> T | None:
    """Return the last of the rising `candidates` for which `fits` is true; None if it is false for the first.

    What follows one that does not fit does not fit either. Tries the first, second, fourth, eighth ... candidate until
    one does not fit, then bisects: at most 2 ceil(log2(n + 1)) + 1 calls of `fits`, where n candidates fit.
    """
    count, tried = len(candidates), 0

    def between(low: int, high: int) -> int:
        """Return the number of candidates that fit; `low` do, `high` or more do not."""
        if high - low == 1:
            return low
        middle = (low + high) // 2
        return between(middle, high) if fits(candidates[middle - 1]) else between(low, middle)

    power = 1
    while power < count and fits(candidates[power - 1]):
        tried, power = power, 2 * power
    if power >= count:
        if count and fits(candidates[count - 1]):
            return candidates[count - 1]
        power = count
    number = between(tried, power) if count else 0
    return candidates[number - 1] if number else None


def find_batch_size(
    step: Callable[[int], object], *, smallest: int = 1, largest: int = 65_536, group: ProcessGroup | None = None
) -> int:
    """Return the largest batch with which `step(batch_size)` has enough memory on every rank of the group.

    `step` trains one step, real or fake, without communication: a rank that runs out of memory would keep others
    waiting. All ranks try the same sizes, as `largest_that_fits` does. The memory of a failed step is free before the
    next one, and at the end. Other errors are raised. Raises `torch.OutOfMemoryError` if `smallest` does not fit.
    """
    given.check_batch_sizes(step, smallest, largest)

    def fits(batch_size: int) -> bool:
        # refers to the frames that it has left, and they to their tensors: until when?
        succeeded = False
        try:
            step(batch_size)
            succeeded = True
        except (torch.OutOfMemoryError, MemoryError):
            pass
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):
                raise
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return given.highest(0.0 if succeeded else 1.0, group) < 0.5

    return given.require_batch(largest_that_fits(fits, range(smallest, largest + 1)), smallest)


def tune_bucket_size(
    measure: Callable[[float], float], sizes: Sequence[float] = given.BUCKET_SIZES, group: ProcessGroup | None = None
) -> float:
    """Return the one of the rising sizes of DDP's buckets that has the shortest step, on the slowest rank.

    `measure(bucket_mb)` returns the seconds of a step on this rank, and may communicate, so all ranks measure the same
    sizes. Over rising sizes times fall (latency), then rise (less overlap), and stay the same once a bucket holds all
    gradients. Measures no size twice, and 2 ceil(log2(n)) of n sizes at most.
    """
    given.check_bucket_sizes(measure, sizes)
    found: dict[float, float] = {}

    def seconds(size: float) -> float:
        if size not in found:
            found[size] = given.highest(measure(size), group)
        return found[size]

    left = list(sizes)
    while len(left) > 1:
        half = (len(left) - 1) // 2
        left = left[half + 1 :] if seconds(left[half]) > seconds(left[half + 1]) else left[: half + 1]
    return left[0]


def scale_recipe(recipe: given.Recipe, num_gpus: int, batch_per_gpu: int, max_batch: int | None = None) -> given.Recipe:
    """Return the recipe for `num_gpus` GPUs with `batch_per_gpu` samples each, fewer if `max_batch` demands it.

    With a batch k times as large the learning rate is k times as high with SGD (Goyal et al. 2017), sqrt(k) times with
    Adam (Malladi et al. 2022). Steps and warm-up have as many samples as before, rounded up to whole steps.
    `max_batch`: above it larger batches hardly save steps (critical batch size, McCandlish et al. 2018).
    """
    given.check_recipe(recipe, num_gpus, batch_per_gpu, max_batch)
    if max_batch is not None:
        batch_per_gpu = min(batch_per_gpu, max_batch // num_gpus)
    batch_size = num_gpus * batch_per_gpu
    factor = batch_size / recipe.batch_size
    rate = recipe.learning_rate * (factor if recipe.optimizer == "sgd" else sqrt(factor))
    steps, warmup = (ceil(count * recipe.batch_size / batch_size) for count in (recipe.steps, recipe.warmup_steps))
    return given.Recipe(batch_size, rate, steps, warmup, recipe.optimizer)


def tune(
    objective: Objective, space: Space, budget: int, *, seed: int = 0, reduction: int = 3, min_steps: int = 1
) -> TuningResult:
    """Return the configuration with the lowest loss, found by successive halving with `budget` steps in all.

    `objective(configuration, steps)` trains anew and returns the loss. On the first of r rungs `reduction ** (r - 1)`
    configurations, drawn with `seed`, train for `budget // (r * reduction ** (r - 1))` steps; on each rung after it the
    best `1 / reduction` of them for `reduction` times as many; on the last one a single one. r is as large as the
    budget and `min_steps` on the first rung allow, but no larger than it takes to try all configurations. A trial that
    runs out of memory or whose loss is not finite has an infinite loss and does not go on: `RuntimeError` if all fail.
    """
    given.check_tuning(objective, space, budget, seed, reduction, min_steps)
    trials: list[given.Trial] = []
    possible = given.number_of_configurations(space)
    sizes = [1]
    while (len(sizes) + 1) * reduction * sizes[0] * min_steps <= budget and sizes[0] < possible:
        sizes.insert(0, reduction * sizes[0])
    steps = budget // (len(sizes) * sizes[0])
    left = given.configurations(space, sizes[0], seed)
    for place in range(len(sizes)):
        rung = [given.run_trial(objective, one, steps * reduction**place) for one in left]
        trials.extend(rung)
        good = sorted((trial.loss, number) for number, trial in enumerate(rung) if trial.loss != inf)
        left = [left[number] for _, number in good[: max(1, len(left) // reduction)]]
    return given.result(trials)


def cost_of(plan: Plan, log: given.TrialLog, cluster: Topology) -> tuple[bool, float]:
    """Return what a search minimizes: what fits comes before what does not, and of that less memory before more."""
    seconds, nbytes = log.measure(plan)
    fits = nbytes <= 1e9 * cluster.gpu.memory_gb
    return not fits, seconds if fits else nbytes


def choose_strategy(
    model: Description, cluster: Topology, batch: int | None = None, measure: Measure | None = None
) -> given.StrategyChoice:
    """Return the fastest of `given.STRATEGIES`, each with the largest microbatch that fits. Measures at most 20 plans.

    `measure(plan)` returns a `given.Measurement`; None: `labkit.predict`. Raises `ValueError` if nothing fits.
    """
    space, log = given.search_of(model, cluster, batch, measure, trials=20)
    choices, first = [], 0
    for name in given.STRATEGIES:
        plans = space.strategy(name)[first:]
        plan = largest_that_fits(lambda one: not cost_of(one, log, cluster)[0], plans)
        if plan is not None:
            first += plans.index(plan)
            choices.append(given.StrategyChoice(name, plan, log.measure(plan).seconds))
    return min(given.some(choices, model), key=lambda choice: choice.seconds)


def search_layout(
    model: Description, cluster: Topology, batch: int | None = None, measure: Measure | None = None, trials: int = 96
) -> Plan:
    """Return the fastest layout that fits, of those in `given.LayoutSpace`, by measuring at most `trials` of them.

    `measure` as above. Raises `ValueError` if no layout that it has measured fits.
    """
    space, log = given.search_of(model, cluster, batch, measure, trials)

    costs: dict[Plan, tuple[bool, float]] = {}

    def best_of(plans: Sequence[Plan]) -> Plan:
        for plan in plans:
            if plan not in costs:
                costs[plan] = cost_of(plan, log, cluster)
        return min(plans, key=costs.__getitem__)

    with suppress(given.TrialsUsedUp):
        best_of(space.splits())
        starts = sorted(costs, key=costs.__getitem__)[:5]
        for start in starts:
            for axis in ("recompute", "zero", "microbatch", "zero"):
                start = best_of(space.along(start, axis))
        while True:
            best = min(costs, key=costs.__getitem__)
            for axis in space.axes:
                best_of(space.along(best, axis))
            if min(costs, key=costs.__getitem__) == best:
                break
    fitting = [plan for plan, (fails, _) in costs.items() if not fails]
    return min(given.some(fitting, model), key=lambda plan: log.found[plan].seconds)
