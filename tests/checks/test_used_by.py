"""A check's own function on the ranks, together with the module under test."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks.course import SOLUTION
from torch import Tensor

from labkit import catalogue
from labkit.checks import Args, Ranks, Submission

pytestmark = pytest.mark.usefixtures("course")


def one_more(tensor: Tensor) -> Tensor:
    return tensor + 1


def twice(tensor: Tensor) -> list[Any]:
    """Use the exercise twice."""
    from labkit.exercises import largest

    first = largest.largest(tensor)
    return [first.tolist(), largest.largest(one_more(first)).tolist()]


def of(source: str) -> Submission:
    return Submission(catalogue.find("largest"), source)


@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_a_function_of_the_rubric_runs_where_the_module_is(cluster: str) -> None:
    inputs = [torch.tensor([0.0, 5.0]), torch.tensor([3.0, 1.0])]
    run = Ranks(cluster)(2).call(of(SOLUTION).used_by(twice, one_more), inputs)
    assert run.values == [[[3.0, 5.0], [4.0, 6.0]]] * 2
    assert run.trace.collective_counts(0) == {"all_reduce": 2}


def test_a_failure_is_told_with_the_learner_s_line() -> None:
    source = SOLUTION.replace("dist.all_reduce(tensor, dist.ReduceOp.MAX)", "raise KeyError('no')")
    run = Ranks()(2).attempt(of(source).used_by(twice, one_more), lambda rank: torch.ones(2))
    assert run.first_failure is not None and run.first_failure.error is not None
    assert run.first_failure.error.where == "phase1_small/largest.py, line 10"


def makes_the_group() -> list[Any]:
    import torch.distributed as dist

    stood = dist.is_initialized()
    dist.init_process_group()
    return [stood, dist.get_rank(), dist.get_world_size()]


@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_the_group_need_not_stand_when_it_begins(cluster: str) -> None:
    run = Ranks(cluster)(2).call(of(SOLUTION).used_by(makes_the_group, joined=False), lambda rank: Args())
    assert run.values == [[False, 0, 2], [False, 1, 2]]
