"""Given parts of the exercise on autotuning: what is measured, what can be chosen, and what ranks agree on.

is_out_of_memory(error)                  # on a GPU, a virtual GPU or a CPU
release_memory()                         # of tensors that only reference cycles hold
highest(value, group)                    # the highest value of all ranks, on each of them
BUCKET_SIZES, Recipe                  # sizes to choose from; batch size, learning rate, steps, warm-up
configurations(space, count, seed)       # drawn from a search space; number_of_configurations, LogUniform, Uniform
run_trial(...), result(trials)           # one trial of `tune`, and the result of all
Measurement, predicted(model, cluster)   # time and memory of a training step
LayoutSpace, STRATEGIES                  # layouts of a model on a cluster
search_of(...)                           # a space, and a log that measures each of its plans once
"""

from labkit.course.phase4_production.autotune.given.agreement import highest
from labkit.course.phase4_production.autotune.given.arguments import (
    check_batch_sizes,
    check_bucket_sizes,
    check_recipe,
    check_tuning,
)
from labkit.course.phase4_production.autotune.given.configurations import (
    LogUniform,
    Space,
    Uniform,
    configurations,
    number_of_configurations,
)
from labkit.course.phase4_production.autotune.given.layouts import STRATEGIES, LayoutSpace, StrategyChoice
from labkit.course.phase4_production.autotune.given.measurements import (
    Measure,
    Measurement,
    TrialLog,
    TrialsUsedUp,
    predicted,
    search_of,
    some,
)
from labkit.course.phase4_production.autotune.given.memory import is_out_of_memory, release_memory, require_batch
from labkit.course.phase4_production.autotune.given.recipe import BUCKET_SIZES, Recipe
from labkit.course.phase4_production.autotune.given.trials import Objective, Trial, TuningResult, result, run_trial

__all__ = [
    "BUCKET_SIZES",
    "STRATEGIES",
    "LayoutSpace",
    "LogUniform",
    "Measure",
    "Measurement",
    "Objective",
    "Recipe",
    "Space",
    "StrategyChoice",
    "Trial",
    "TrialLog",
    "TrialsUsedUp",
    "TuningResult",
    "Uniform",
    "check_batch_sizes",
    "check_bucket_sizes",
    "check_recipe",
    "check_tuning",
    "configurations",
    "highest",
    "is_out_of_memory",
    "number_of_configurations",
    "predicted",
    "release_memory",
    "require_batch",
    "result",
    "run_trial",
    "search_of",
    "some",
]
