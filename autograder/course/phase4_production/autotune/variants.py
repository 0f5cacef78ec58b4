"""Variants of autotune: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "recursive": Variant().edited("""
        Right: a recursive bisection, all neighbours of the best layouts in turn, rungs from the last one backwards.

        The bisection calls `fits` for the same candidates; it keeps the number of those that fit, not the last of them.
        Layouts are improved until no neighbour of the best one is better, within the same number of trials.

        + import gc
          from collections.abc import Callable, Sequence

        - from functools import cache, partial

        + import torch
          from torch.distributed import ProcessGroup

        - low, high = -1, 0
        - while high < len(candidates) and fits(candidates[high]):
        -     low, high = high, max(high + 1, min(2 * high + 1, len(candidates) - 1))
        - while high - low > 1:
        + count, tried = len(candidates), 0
        +
        + def between(low: int, high: int) -> int:
        +     # the number of candidates that fit: `low` do, `high` or more do not
        +     if high - low == 1:
        +         return low
              middle = (low + high) // 2
        -     low, high = (middle, high) if fits(candidates[middle]) else (low, middle)
        - return candidates[low] if low >= 0 else None
        +     return between(middle, high) if fits(candidates[middle - 1]) else between(low, middle)
        +
        + power = 1
        + while power < count and fits(candidates[power - 1]):
        +     tried, power = power, 2 * power
        + if power >= count:
        +     if count and fits(candidates[count - 1]):
        +         return candidates[count - 1]
        +     power = count
        + number = between(tried, power) if count else 0
        + return candidates[number - 1] if number else None

        - failed = False
        + succeeded = False
          try:
              step(batch_size)
        - except Exception as error:
        -     if not given.is_out_of_memory(error):
        +     succeeded = True
        + except (torch.OutOfMemoryError, MemoryError):
        +     pass
        + except RuntimeError as error:
        +     if "can't allocate memory" not in str(error):
                  raise
        -     failed = True
        - given.release_memory()
        - return not given.highest(failed, group)
        + gc.collect()
        + if torch.cuda.is_available():
        +     torch.cuda.empty_cache()
        + return given.highest(0.0 if succeeded else 1.0, group) < 0.5

        - seconds = cache(lambda place: given.highest(measure(sizes[place]), group))
        - low, high = 0, len(sizes) - 1
        - while low < high:
        -     middle = (low + high) // 2
        -     low, high = (low, middle) if seconds(middle) <= seconds(middle + 1) else (middle + 1, high)
        - return sizes[low]
        + found: dict[float, float] = {}
        +
        + def seconds(size: float) -> float:
        +     if size not in found:
        +         found[size] = given.highest(measure(size), group)
        +     return found[size]
        +
        + left = list(sizes)
        + while len(left) > 1:
        +     half = (len(left) - 1) // 2
        +     left = left[half + 1 :] if seconds(left[half]) > seconds(left[half + 1]) else left[: half + 1]
        + return left[0]

        - every, rungs = given.number_of_configurations(space), 1
        - while (rungs + 1) * reduction**rungs * min_steps <= budget and reduction ** (rungs - 1) < every:
        -     rungs += 1
        - steps = budget // (rungs * reduction ** (rungs - 1))
        - left = given.configurations(space, reduction ** (rungs - 1), seed)
        - for _ in range(rungs):
        -     rung = [given.run_trial(objective, configuration, steps) for configuration in left]
        -     trials += rung
        -     ranked = [trial.configuration for trial in sorted(rung, key=lambda one: one.loss) if trial.loss < inf]
        -     left, steps = ranked[: max(1, len(left) // reduction)], steps * reduction
        + possible = given.number_of_configurations(space)
        + sizes = [1]
        + while (len(sizes) + 1) * reduction * sizes[0] * min_steps <= budget and sizes[0] < possible:
        +     sizes.insert(0, reduction * sizes[0])
        + steps = budget // (len(sizes) * sizes[0])
        + left = given.configurations(space, sizes[0], seed)
        + for place in range(len(sizes)):
        +     rung = [given.run_trial(objective, one, steps * reduction**place) for one in left]
        +     trials.extend(rung)
        +     good = sorted((trial.loss, number) for number, trial in enumerate(rung) if trial.loss != inf)
        +     left = [left[number] for _, number in good[: max(1, len(left) // reduction)]]

        - cost = partial(cost_of, log=log, cluster=cluster)
        + costs: dict[Plan, tuple[bool, float]] = {}
        +
        + def best_of(plans: Sequence[Plan]) -> Plan:
        +     for plan in plans:
        +         if plan not in costs:
        +             costs[plan] = cost_of(plan, log, cluster)
        +     return min(plans, key=costs.__getitem__)
        +
          with suppress(given.TrialsUsedUp):
        -     for plan in sorted(space.splits(), key=cost)[:6]:
        -         for axis in ("recompute", "zero", "microbatch"):
        -             plan = min(space.along(plan, axis), key=cost)
        -     best, before = min(log.found, key=cost), None
        -     while best != before:
        -         before, best = best, min((plan for axis in space.axes for plan in space.along(best, axis)), key=cost)
        - fitting = [plan for plan in log.found if not cost(plan)[0]]
        +     best_of(space.splits())
        +     starts = sorted(costs, key=costs.__getitem__)[:5]
        +     for start in starts:
        +         for axis in ("recompute", "zero", "microbatch", "zero"):
        +             start = best_of(space.along(start, axis))
        +     while True:
        +         best = min(costs, key=costs.__getitem__)
        +         for axis in space.axes:
        +             best_of(space.along(best, axis))
        +         if min(costs, key=costs.__getitem__) == best:
        +             break
        + fitting = [plan for plan, (fails, _) in costs.items() if not fails]
    """),
}
