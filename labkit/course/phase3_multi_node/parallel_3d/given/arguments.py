"""Arguments of 3D parallelism, checked before any message is sent."""

from __future__ import annotations

from typing import Any, Protocol

from labkit.course.arguments import integer, one_of, require
from labkit.course.phase2_advanced.pipeline_parallel.given.arguments import check_schedule_name
from labkit.course.phase3_multi_node.parallel_3d.given.axes import AXES, Coordinates


class Config(Protocol):
    """Sizes of a GPT that decide how it can be cut."""

    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def vocab(self) -> int: ...


def check_rank(rank: Any, axis: str, sizes: Coordinates) -> None:
    """Raise `ValueError` unless the mesh has this rank and this axis."""
    require("rank", rank, integer(at_least=0, below=sizes.dp * sizes.pp * sizes.tp))
    require("axis", axis, one_of(*AXES))


def check_trainer(
    config: Config, sizes: Coordinates, microbatches: int, schedule: str, chunks: int, data_parallel: str
) -> None:
    """Raise `ValueError` unless the model can be cut for a mesh of these sizes, and the options fit together."""
    require("microbatches", microbatches, integer(at_least=1))
    require("chunks", chunks, integer(at_least=1))
    check_schedule_name(schedule, chunks)
    require("data_parallel", data_parallel, one_of("ddp", "optimizer"))
    if config.heads % sizes.tp:
        raise ValueError(f"config must have a multiple of {sizes.tp} heads, some for each rank, got {config.heads}")
    if config.vocab < sizes.tp:
        raise ValueError(f"config must have a vocab of {sizes.tp} or more, some for each rank, got {config.vocab}")
    if config.layers + 2 < sizes.pp * chunks:
        raise ValueError(
            f"config must have layers for {sizes.pp} * {chunks} stages, one for each, got {config.layers} and two ends"
        )
