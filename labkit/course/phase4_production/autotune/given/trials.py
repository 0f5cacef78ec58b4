"""Trials of `tune`: how one is run, how it is recorded, and the result of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit.course.phase4_production.autotune.given.memory import is_out_of_memory, release_memory

Objective = Callable[[dict[str, Any], int], float]
"""Function that trains a configuration anew for a number of steps and returns its loss."""


class Trial(NamedTuple):
    """One call of the objective."""

    configuration: dict[str, Any]
    steps: int
    loss: float
    """Infinite if the trial failed: out of memory, or a loss that is not finite."""


@dataclass(frozen=True)
class TuningResult:
    """The best configuration, its loss after `steps` steps, and all trials in their order."""

    configuration: dict[str, Any]
    loss: float
    steps: int
    trials: tuple[Trial, ...]

    @property
    def total_steps(self) -> int:
        """Steps of all trials together."""
        return sum(trial.steps for trial in self.trials)


def run_trial(objective: Objective, configuration: dict[str, Any], steps: int) -> Trial:
    """Call the objective once. Its loss is infinite if it runs out of memory, or if its loss is not finite."""
    loss, failed = math.inf, False
    try:
        loss = float(objective(dict(configuration), steps))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failed = True
    if failed:  # the error no longer refers to the trial's tensors
        release_memory()
    return Trial(configuration, steps, loss if math.isfinite(loss) else math.inf)


def result(trials: Sequence[Trial]) -> TuningResult:
    """Return the best of the longest trials that did not fail. Raises `RuntimeError` if all failed."""
    finite = [trial for trial in trials if math.isfinite(trial.loss)]
    if not finite:
        raise RuntimeError(f"all {len(trials)} trials failed: out of memory, or a loss that is not finite")
    best = min(finite, key=lambda trial: (-trial.steps, trial.loss))
    return TuningResult(best.configuration, best.loss, best.steps, tuple(trials))
