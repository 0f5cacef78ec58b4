"""Arguments of pipeline parallelism, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, get_args

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.arguments import Rule, integer, one_of, require
from labkit.course.collective_arguments import require_this_rank
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import Op, Schedule, StageStep


class Stage(Protocol):
    """A stage as the pipeline sees it: its module, and its place among all stages."""

    module: nn.Module
    index: int
    """Number of the stage over all ranks and chunks."""
    count: int
    """Number of all stages."""


def check_counts(**counts: int) -> None:
    """Raise ValueError for a count below 1."""
    for name, count in counts.items():
        require(name, count, integer(at_least=1))


def check_schedule_name(name: str, chunks: int) -> None:
    """Raise ValueError for an unknown name of a schedule, or for a number of chunks that it does not have."""
    require("name", name, one_of("gpipe", "1f1b", "interleaved"))
    if chunks != 1 and name != "interleaved":
        raise ValueError(f"chunks must be 1 with {name}, got {chunks}")


def check_split(num_layers: int, num_stages: int, costs: Sequence[float]) -> None:
    """Raise ValueError unless `num_layers` layers of these costs can be split into `num_stages` stages."""
    require("num_stages", num_stages, integer(at_least=1, below=num_layers + 1))
    if len(costs) != num_layers or not all(0 <= cost < float("inf") for cost in costs):
        raise ValueError(f"costs must be {num_layers} numbers of 0 or more, one for each layer, got {costs}")


def check_index(index: int, count: int) -> None:
    """Raise ValueError unless `index` is the number of a stage, from 0 to `count` - 1."""
    require("index", index, integer(at_least=0, below=count))


def check_stages(stages: Sequence[Stage], group: ProcessGroup | None) -> None:
    """Raise ValueError unless this rank is in the group and `stages` are those of this rank, one for each chunk."""
    require_this_rank(group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    count = ranks * len(stages)
    wanted = [(index, count) for index in range(rank, count, ranks)]
    if (seen := [(stage.index, stage.count) for stage in stages]) != wanted:
        raise ValueError(f"stages of rank {rank} must have (index, count) {wanted}, got {seen}")


def check_schedule(schedule: Schedule, ranks: int, chunks: int) -> int:
    """Return the number of microbatches. Raise ValueError unless each step is done once, after those it needs."""
    done = {StageStep(a.op, a.chunk * ranks + a.stage, a.microbatch): a.time for a in schedule}
    count, microbatches = ranks * chunks, 1 + max((action.microbatch for action in schedule), default=-1)
    wanted = {StageStep(op, g, k) for op in get_args(Op) for g in range(count) for k in range(microbatches)}
    if not schedule or set(done) != wanted or len(schedule) != len(wanted):
        raise ValueError(
            f"schedule must do each forward and backward of {ranks} ranks with {chunks} stages each once, got "
            f"{len(schedule)} actions, of {microbatches} microbatches"
        )
    if len({(action.time, action.stage) for action in schedule}) < len(schedule):
        raise ValueError("schedule must have one action of a rank in a slot, got two")
    for step, time in done.items():
        if late := [need for need in step.prerequisites(count) if done[need] >= time]:
            raise ValueError(f"schedule must do {late[0]} before slot {time}, got slot {done[late[0]]}")
    return microbatches


def split_batch(
    stages: Sequence[Stage], microbatches: int, batch: Any, target: Any, criterion: Any
) -> tuple[Sequence[Tensor], Sequence[Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Return the parts of the batch and of the target, one for each microbatch, and the criterion.

    stages: those of this rank. The rank of the first stage needs the batch; the rank of the last one needs target and
    criterion. On other ranks nothing is checked, and there are no parts. Raises ValueError if something is missing.
    """
    rank, is_first, is_last = stages[0].index, stages[0].index == 0, stages[-1].index == stages[-1].count - 1
    if is_first:
        require("batch", batch, Rule(f"be a tensor of samples on rank {rank}", _is_batch))
    if is_last:
        require("target", target, Rule(f"be a tensor of samples on rank {rank}", _is_batch))
        require("criterion", criterion, Rule(f"be a function on rank {rank}", callable))
    if is_first and is_last and len(batch) != len(target):
        raise ValueError(f"target must have as many samples as batch, {len(batch)}, got {len(target)}")
    inputs = batch.detach().tensor_split(microbatches) if is_first else ()
    return inputs, target.tensor_split(microbatches) if is_last else (), criterion


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
