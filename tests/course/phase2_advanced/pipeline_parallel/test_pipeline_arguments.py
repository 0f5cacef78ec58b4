"""Arguments of a pipeline that do not fit, and the parts of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from labkit.course.phase2_advanced.pipeline_parallel.given import arguments
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import Action

FORTH, BACK = Action(0, 0, "forward", 0), Action(1, 0, "backward", 0)
BATCH = torch.ones(5, 2)


@dataclass
class Stage:
    index: int
    count: int
    module: nn.Module


def stages(*indices: int, count: int) -> list[Stage]:
    return [Stage(index, count, nn.Identity()) for index in indices]


ONLY, FIRST, LAST = stages(0, count=1), stages(0, 2, count=4), stages(1, 3, count=4)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: arguments.check_counts(stages=2, microbatches=0), "microbatches must be an integer from 1, got 0"),
        (
            lambda: arguments.check_schedule_name("zigzag", 1),
            "name must be one of gpipe, 1f1b, interleaved, got 'zigzag'",
        ),
        (lambda: arguments.check_schedule_name("1f1b", 2), "chunks must be 1 with 1f1b, got 2"),
        (lambda: arguments.check_split(2, 3, [1, 1]), "num_stages must be an integer from 1 to 2, got 3"),
        (lambda: arguments.check_split(2, 2, [1]), "costs must be 2 numbers of 0 or more"),
        (lambda: arguments.check_split(2, 2, [1, float("nan")]), "costs must be 2 numbers of 0 or more"),
        (lambda: arguments.check_index(3, 3), "index must be an integer from 0 to 2, got 3"),
        (lambda: arguments.check_schedule([], 1, 1), "schedule must do each forward and backward of 1 ranks"),
        (lambda: arguments.check_schedule([FORTH], 1, 1), "got 1 actions, of 1 microbatches"),
        (lambda: arguments.check_schedule([FORTH, BACK, BACK], 1, 1), "got 3 actions, of 1 microbatches"),
        (
            lambda: arguments.check_schedule([FORTH, BACK._replace(time=0)], 1, 1),
            "schedule must have one action of a rank in a slot",
        ),
        (
            lambda: arguments.check_schedule([FORTH._replace(time=2), BACK], 1, 1),
            r"schedule must do StageStep\(op='forward', stage=0, microbatch=0\) before slot 1, got slot 2",
        ),
        (lambda: arguments.split_batch(FIRST, 2, None, None, None), "batch must be a tensor of samples on rank 0"),
        (lambda: arguments.split_batch(FIRST, 2, torch.ones(()), None, None), "batch must be a tensor of samples"),
        (lambda: arguments.split_batch(LAST, 2, None, None, max), "target must be a tensor of samples on rank 1"),
        (lambda: arguments.split_batch(LAST, 2, None, BATCH, 3), "criterion must be a function on rank 1, got 3"),
        (
            lambda: arguments.split_batch(ONLY, 2, BATCH, BATCH[1:], max),
            "target must have as many samples as batch, 5, got 4",
        ),
    ],
)
def test_an_error_names_the_argument_and_its_value(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check()


def test_a_possible_schedule_has_its_number_of_microbatches() -> None:
    later = [action._replace(time=action.time + 2, microbatch=1) for action in (FORTH, BACK)]
    assert arguments.check_schedule([FORTH, BACK, *later], 1, 1) == 2


def test_a_rank_gets_the_parts_that_its_stages_need() -> None:
    inputs, targets, _ = arguments.split_batch(FIRST, 3, BATCH.requires_grad_(), None, None)
    assert [len(part) for part in inputs] == [2, 2, 1] and not targets
    assert not any(part.requires_grad for part in inputs)
    inputs, targets, criterion = arguments.split_batch(LAST, 7, None, BATCH, max)
    assert not inputs and [len(part) for part in targets] == [1, 1, 1, 1, 1, 0, 0] and criterion is max
