"""Turns an entry's answer, data from an untrusted program, into a layout of the training, or rejects it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.challenges.step_13b.trainings import Training
from labkit.predict import Plan

MOST_STAGES = 4
"""Maximum number of stages: slices of longer pipelines take minutes to run."""
_SIZES = ("data", "pipeline", "tensor", "microbatch")
_CHOICES: dict[str, tuple[Any, ...]] = {"zero": (0, 1), "recompute": ("none", "full")}


def layout_of(answer: Any, training: Training) -> Plan:
    """Return the layout. Raises ValueError that names the entry that is wrong."""
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise ValueError(f"plan must return a dictionary, got {_shown(answer)}")
    if set(answer) != {*_SIZES, *_CHOICES}:
        raise ValueError(f"plan must return entries {', '.join((*_SIZES, *_CHOICES))}, got {_shown(sorted(answer))}")
    most = {name: training.cluster.world_size for name in _SIZES} | {"microbatch": training.batch}
    most["pipeline"] = MOST_STAGES
    for name in _SIZES:
        if type(answer[name]) is not int or not 1 <= answer[name] <= most[name]:
            raise ValueError(f"{name} must be an integer from 1 to {most[name]}, got {_shown(answer[name])}")
    for name, choices in _CHOICES.items():
        if type(answer[name]) is not type(choices[0]) or answer[name] not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {_shown(answer[name])}")
    data, pipeline, tensor = answer["data"], answer["pipeline"], answer["tensor"]
    if data * pipeline * tensor != training.cluster.world_size:
        raise ValueError(
            f"data * pipeline * tensor must be {training.cluster.world_size}, got {data * pipeline * tensor}"
        )
    if training.model.heads % tensor:
        raise ValueError(f"tensor must divide the {training.model.heads} heads, got {tensor}")
    return Plan(batch=training.batch, **dict(answer))


def _shown(value: Any) -> str:
    return repr(value)[:100]
