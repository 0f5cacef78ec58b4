"""Arguments of autotuning, checked before anything is run or sent."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from labkit.course.arguments import Rule, function, instance_of, integer, list_of, optional, positive, require
from labkit.course.phase4_production.autotune.given.configurations import Uniform
from labkit.course.phase4_production.autotune.given.recipe import Recipe
from labkit.hardware import Topology
from labkit.predict.describe import MLP, Convolutional, ModuleCosts, Transformer

_SPACE = Rule(
    "have an entry or more, a name with its choices or interval",
    lambda value: isinstance(value, Mapping) and len(value) > 0,
)
_CHOICES = Rule(
    "be a list of choices, Uniform or LogUniform",
    lambda value: isinstance(value, Uniform) or (isinstance(value, (list, tuple, range)) and len(value) > 0),
)
_DIFFERENT = Rule(
    "be a list of different choices",
    lambda value: (
        not isinstance(value, (list, tuple)) or not any(choice in value[:place] for place, choice in enumerate(value))
    ),
)
_MODEL = instance_of(
    (Transformer, Convolutional, MLP, ModuleCosts), "a description, such as labkit.predict.model('gpt-13b')"
)


def check_batch_sizes(step: Any, smallest: Any, largest: Any) -> None:
    require("step", step, function())
    require("smallest", smallest, integer(at_least=1))
    require("largest", largest, integer(at_least=smallest))


def check_bucket_sizes(measure: Any, sizes: Any) -> None:
    require("measure", measure, function())
    require("sizes", sizes, list_of("sizes"))
    for size in sizes:
        require("sizes", size, positive)
    if any(after <= before for before, after in pairwise(sizes)):
        raise ValueError(f"sizes must rise, got {sizes!r}")


def check_recipe(recipe: Any, num_gpus: Any, batch_per_gpu: Any, max_batch: Any) -> None:
    require("recipe", recipe, instance_of(Recipe, "a Recipe"))
    require("num_gpus", num_gpus, integer(at_least=1))
    require("batch_per_gpu", batch_per_gpu, integer(at_least=1))
    require("max_batch", max_batch, optional(integer(at_least=num_gpus)))


def check_tuning(objective: Any, space: Any, budget: Any, seed: Any, reduction: Any, min_steps: Any) -> None:
    require("objective", objective, function())
    require("space", space, _SPACE)
    for name, values in space.items():
        require(f"space[{name!r}]", values, _CHOICES)
        require(f"space[{name!r}]", values, _DIFFERENT)
    require("min_steps", min_steps, integer(at_least=1))
    require("budget", budget, integer(at_least=min_steps))
    require("reduction", reduction, integer(at_least=2))
    require("seed", seed, integer())


def require_search(model: Any, cluster: Any, batch: Any, measure: Any, trials: Any) -> None:
    require("model", model, _MODEL)
    require("cluster", cluster, instance_of(Topology, "a Topology, such as topology('dgx-a100', nnodes=4)"))
    require("batch", batch, optional(integer(at_least=1)))
    require("measure", measure, optional(function()))
    require("trials", trials, integer(at_least=1))
