"""Argument checks of autotuning: `ValueError` with the argument's name and value, before anything is run or sent."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from labkit.course.number_arguments import require_integer, require_positive
from labkit.course.phase4_production.autotune.given.configurations import Uniform
from labkit.course.phase4_production.autotune.given.recipe import Recipe
from labkit.hardware import Topology
from labkit.predict.describe import MLP, Convolutional, ModuleCosts, Transformer


def check_batch_sizes(step: Any, smallest: Any, largest: Any) -> None:
    _require_function("step", step)
    require_integer("smallest", smallest, at_least=1)
    require_integer("largest", largest, at_least=smallest)


def check_bucket_sizes(measure: Any, sizes: Any) -> None:
    _require_function("measure", measure)
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise ValueError(f"sizes must be a list of one size or more, got {sizes!r}")
    for size in sizes:
        require_positive("sizes", size)
    if any(after <= before for before, after in pairwise(sizes)):
        raise ValueError(f"sizes must rise, got {sizes!r}")


def check_recipe(recipe: Any, num_gpus: Any, batch_per_gpu: Any, max_batch: Any) -> None:
    if not isinstance(recipe, Recipe):
        raise ValueError(f"recipe must be a Recipe, got {recipe!r}")
    require_integer("num_gpus", num_gpus, at_least=1)
    require_integer("batch_per_gpu", batch_per_gpu, at_least=1)
    if max_batch is not None:
        require_integer("max_batch", max_batch, at_least=num_gpus)


def check_tuning(objective: Any, space: Any, budget: Any, seed: Any, reduction: Any, min_steps: Any) -> None:
    _require_function("objective", objective)
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"space must have an entry or more, a name with its choices or interval, got {space!r}")
    for name, values in space.items():
        if not isinstance(values, Uniform) and (not isinstance(values, (list, tuple, range)) or not len(values)):
            raise ValueError(f"space[{name!r}] must be a list of choices, Uniform or LogUniform, got {values!r}")
        if isinstance(values, (list, tuple)) and any(choice in values[:place] for place, choice in enumerate(values)):
            raise ValueError(f"space[{name!r}] must be a list of different choices, got {values!r}")
    require_integer("min_steps", min_steps, at_least=1)
    require_integer("budget", budget, at_least=min_steps)
    require_integer("reduction", reduction, at_least=2)
    if type(seed) is not int:
        raise ValueError(f"seed must be an integer, got {seed!r}")


def check_search(model: Any, cluster: Any, batch: Any, measure: Any, trials: Any) -> None:
    if not isinstance(model, (Transformer, Convolutional, MLP, ModuleCosts)):
        raise ValueError(f"model must be a description, such as labkit.predict.model('gpt-13b'), got {model!r}")
    if not isinstance(cluster, Topology):
        raise ValueError(f"cluster must be a Topology, such as topology('dgx-a100', nnodes=4), got {cluster!r}")
    if batch is not None:
        require_integer("batch", batch, at_least=1)
    if measure is not None:
        _require_function("measure", measure)
    require_integer("trials", trials, at_least=1)


def _require_function(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name} must be a function, got {value!r}")
