"""Autotuning: batch, bucket size, learning rate and layout for a cluster, found by few measurements.

Measuring is what costs, so a search asks only what it cannot know. Memory rises with the batch: bisection. A step's
time has one valley over bucket sizes. What is bad early is rarely best at the end: successive halving (Jamieson &
Talwalkar 2016). A layout is improved along one axis after the other: coordinate descent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import ceil, inf, sqrt
from typing import TypeVar

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
    # TODO 1. Keep two places: the last candidate that is known to fit, -1 at first, and the next one to try.
    # YOUR CODE HERE
    raise NotImplementedError()


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
        # This belongs to TODO 1, too: `given.is_out_of_memory`, `given.release_memory`, `given.highest`. An exception
        # refers to the frames that it has left, and they to their tensors: until when?
        # YOUR CODE HERE
        raise NotImplementedError()

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
    # TODO 2. Two neighbours in the middle tell on which side of them the valley is. And if they are equal?
    # YOUR CODE HERE
    raise NotImplementedError()


def scale_recipe(recipe: given.Recipe, num_gpus: int, batch_per_gpu: int, max_batch: int | None = None) -> given.Recipe:
    """Return the recipe for `num_gpus` GPUs with `batch_per_gpu` samples each, fewer if `max_batch` demands it.

    With a batch k times as large the learning rate is k times as high with SGD (Goyal et al. 2017), sqrt(k) times with
    Adam (Malladi et al. 2022). Steps and warm-up have as many samples as before, rounded up to whole steps.
    `max_batch`: above it larger batches hardly save steps (critical batch size, McCandlish et al. 2018).
    """
    given.check_recipe(recipe, num_gpus, batch_per_gpu, max_batch)
    # This belongs to TODO 2, too.
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # TODO 3. How many rungs? r of them cost r * reduction**(r - 1) * min_steps at least. `given.configurations(space,
    # count, seed)` draws, fewer than `count` if there are no more; `given.run_trial(objective, configuration, steps)`.
    # YOUR CODE HERE
    raise NotImplementedError()
    return given.result(trials)


def cost_of(plan: Plan, log: given.TrialLog, cluster: Topology) -> tuple[bool, float]:
    """Return what a search minimizes: what fits comes before what does not, and of that less memory before more."""
    # TODO 4. `log.measure(plan)` measures each plan once. The memory of a GPU is `cluster.gpu.memory_gb` * 1e9 bytes.
    # YOUR CODE HERE
    raise NotImplementedError()


def choose_strategy(
    model: Description, cluster: Topology, batch: int | None = None, measure: Measure | None = None
) -> given.StrategyChoice:
    """Return the fastest of `given.STRATEGIES`, each with the largest microbatch that fits. Measures at most 20 plans.

    `measure(plan)` returns a `given.Measurement`; None: `labkit.predict`. Raises `ValueError` if nothing fits.
    """
    space, log = given.search_of(model, cluster, batch, measure, trials=20)
    # This belongs to TODO 4, too. `space.strategy(name)` has the plans of a strategy by rising microbatch. Each one
    # needs less memory than the strategy before: where does its search begin?
    # YOUR CODE HERE
    raise NotImplementedError()
    return min(given.some(choices, model), key=lambda choice: choice.seconds)


def search_layout(
    model: Description, cluster: Topology, batch: int | None = None, measure: Measure | None = None, trials: int = 96
) -> Plan:
    """Return the fastest layout that fits, of those in `given.LayoutSpace`, by measuring at most `trials` of them.

    `measure` as above. Raises `ValueError` if no layout that it has measured fits.
    """
    space, log = given.search_of(model, cluster, batch, measure, trials)

    # This belongs to TODO 4, too. `space.splits()`: where to begin; `space.along(plan, axis)`: what differs in one axis
    # of `space.axes`; `log.found`: all measured so far; `log.measure` raises `given.TrialsUsedUp` at the end.
    # YOUR CODE HERE
    raise NotImplementedError()
    return min(given.some(fitting, model), key=lambda plan: log.found[plan].seconds)
