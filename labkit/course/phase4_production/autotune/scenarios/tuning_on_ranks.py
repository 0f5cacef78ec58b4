"""Programs for the ranks of checks of autotuning: the learner's searches on all ranks but the last, which measures."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.distributed as dist

from labkit.clusters.device import memory_allocated
from labkit.course.measuring_rank import answer, ask, stop
from labkit.course.phase4_production.autotune.given import LogUniform, Measurement, Recipe, Uniform
from labkit.course.phase4_production.autotune.scenarios.planted_layouts import key
from labkit.hardware import Topology
from labkit.predict import model


def sized(
    kilobytes: int, fixed: int, smallest: int, largest: int, breaks_at: int, trial: Any, group: Any = None
) -> list[Any]:
    """On a rank: find the batch size of a step that takes so many kB a sample, and `fixed`; return it, the memory that
    was held when steps began and at the end, and the error."""
    from labkit.exercises import autotune

    held = []
    before = memory_allocated()

    def step(batch_size: int) -> None:
        held.append(memory_allocated() - before)
        trial()
        if batch_size >= breaks_at:
            raise RuntimeError("the model is broken")
        weights = torch.empty(256 * fixed)
        graph: dict[str, Any] = {"activations": torch.empty(256 * kilobytes * batch_size), "weights": weights}
        graph["itself"] = graph  # only the garbage collector frees such cycles

    found, failure = None, ""
    try:
        found = int(autotune.find_batch_size(step, smallest=smallest, largest=largest, group=group))
    except NotImplementedError:
        raise  # a part that is not written yet is no answer
    except Exception as error:
        failure = type(error).__name__
    after = memory_allocated() - before
    return [found, max(held), after if not breaks_at <= largest else 0, failure]


def bucketed(asks: bool, curves: Any, group: Any = None) -> Any:
    """On a rank: tune the bucket size by asking the last rank, or answer: (asker, size) -> seconds by `curves`."""
    last = dist.get_world_size() - 1
    if not asks:
        times = {(asker, float(size)): seconds for asker, size, seconds in curves}
        return answer(lambda asker, numbers: (times.get((asker, numbers[0]), 1e9), 0.0), range(last))
    from labkit.exercises import autotune

    found = autotune.tune_bucket_size(lambda size: ask(last, float(size))[0], group=group)
    stop(last)
    return float(found)


def scaled(cases: list[Any]) -> list[list[Any]]:
    """On a rank: return the scaled recipe of each case."""
    from labkit.exercises import autotune

    found = []
    for fields, gpus, per_gpu, most in cases:
        made = autotune.scale_recipe(Recipe(*fields), gpus, per_gpu, most)
        found.append([made.batch_size, made.learning_rate, made.steps, made.warmup_steps, made.optimizer])
    return found


def tuned(asks: bool, space: Any, budget: int, seeds: list[int], reduction: int, losses: Any) -> Any:
    """On a rank: tune by asking the last rank once for each of `seeds`, or answer by `losses`, rows of values, floor,
    gap, and the steps from which the trial fails, how."""
    last = dist.get_world_size() - 1
    if not asks:
        rows = {tuple(values): rest for *values, rest in losses}

        def lookup(asker: int, numbers: tuple[float, ...]) -> Any:
            steps, *values = numbers
            if not rows:  # a smooth space: the loss is a function of the values
                return sum(abs(math.log(abs(value) + 1e-9)) for value in values) + 1 / steps, 0.0
            if tuple(values) not in rows:
                return None
            floor, gap, fails_at, how = rows[tuple(values)]
            return floor + gap / math.sqrt(steps), how if steps >= fails_at else 0.0

        return answer(lookup, [0])
    from labkit.exercises import autotune

    kinds = {"log": LogUniform, "uniform": Uniform}
    made = {
        name: values if isinstance(values[0], (int, float)) else kinds[values[0]](*values[1:])
        for name, values in space.items()
    }

    def objective(configuration: dict[str, Any], steps: int) -> float:
        loss, how = ask(last, steps, *configuration.values())
        if how == 1:
            raise torch.OutOfMemoryError("CUDA out of memory: a trial")
        return {0: loss, 2: math.nan, 3: math.inf, 4: -math.inf}[int(how)]

    found: list[Any] = []
    for number, seed in enumerate(seeds):
        random.seed(number)
        torch.manual_seed(number)
        states = random.getstate(), torch.get_rng_state()
        try:
            result = autotune.tune(objective, made, budget, seed=seed, reduction=reduction)
            found.append([list(result.configuration.values()), float(result.loss), int(result.steps)])
        except NotImplementedError:
            raise  # a part that is not written yet is no answer
        except Exception as error:
            found.append(type(error).__name__)
        unchanged = random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
        found[-1] = [found[-1], unchanged]
    stop(last)
    return found


def searched(asks: bool, what: str, given: list[Any], tables: list[Any]) -> Any:
    """On a rank: for each (model, cluster, batch) of `given` search by asking the last rank, or answer by `tables`."""
    last = dist.get_world_size() - 1
    if not asks:
        rows = [{tuple(plan): found for plan, found in table} for table in tables]
        return answer(lambda asker, numbers: rows[int(numbers[0])].get(tuple(numbers[1:])), [0])
    from labkit.exercises import autotune

    found: list[Any] = []
    for number, (name, cluster, batch) in enumerate(given):

        def measure(plan: Any, number: int = number) -> Measurement:
            return Measurement(*ask(last, number, *key(plan)))

        try:
            search = autotune.search_layout if what == "layout" else autotune.choose_strategy
            result = search(model(name), Topology.from_plain(cluster), batch, measure=measure)
            found.append(list(key(result if what == "layout" else result.plan)))
        except NotImplementedError:
            raise  # a part that is not written yet is no answer
        except ValueError as error:
            found.append(f"ValueError: {error}")
    stop(last)
    return found
