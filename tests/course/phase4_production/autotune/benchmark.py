"""Part of solutions.py: exercise 24's searches, beside searches that measure more for the same result.

The first row compares a search of a layout with measuring every layout, both by `labkit.predict`: its result must be
within 5 % of theirs. The second compares successive halving with as many full trials as the budget allows, on losses
that fall with the root of the steps: its best loss must be at most theirs. Measurements take their time, so seconds are
those of the searches and of all that they measure.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from beside import Beside

from labkit import catalogue
from labkit.course.phase4_production.autotune.given import LayoutSpace, LogUniform, configurations, predicted
from labkit.exercises import load
from labkit.hardware import topology
from labkit.predict import model

BUDGET = 864


def timed(function: Callable[[], Any], repetitions: int) -> tuple[float, Any]:
    """Return the median of its seconds, and its last result."""
    seconds, result = [], None
    for _ in range(repetitions):
        began = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), result


def loss(configuration: dict[str, Any], steps: int) -> float:
    """Return a loss that is lowest for a learning rate of 0.1, and falls with the steps."""
    draws = random.Random(0)
    total = sum(draws.random() for _ in range(200 * steps)) * 0
    return abs(math.log10(configuration["learning_rate"]) + 1) + 1 / math.sqrt(steps) + total


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure a search of layouts, and one of learning rates."""
    exercise = catalogue.find("autotune")
    autotune = load(exercise, exercise.source("solution")[0])
    described, cluster = model("gpt2-xl"), topology("dgx-a100")
    step, space = predicted(described, cluster), LayoutSpace(described, cluster)

    def every() -> float:
        found = map(step, space.all())
        return min(one.seconds for one in found if one.nbytes <= 1e9 * cluster.gpu.memory_gb)

    mine, plan = timed(lambda: autotune.search_layout(described, cluster), repetitions)
    theirs, best = timed(every, repetitions)
    near = step(plan).seconds <= 1.05 * best
    rates = {"learning_rate": LogUniform(1e-5, 10)}
    min_steps = 8
    halving, result = timed(lambda: autotune.tune(loss, rates, BUDGET, min_steps=min_steps), repetitions)
    drawn = configurations(rates, BUDGET // result.steps, 0)
    full, lowest = timed(lambda: min(loss(one, result.steps) for one in drawn), repetitions)
    return [
        Beside("search of a layout for gpt2-xl on 8 GPUs; every layout", mine, theirs, near, same_algorithm=False),
        Beside(f"27 configurations, {BUDGET} steps; random search", halving, full, result.loss <= lowest, False),
    ]
