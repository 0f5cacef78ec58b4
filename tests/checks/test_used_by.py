"""A check's own function on the ranks, together with the module under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checks import scenarios
from checks.course import SOLUTION
from checks.scenarios import Doubling
from torch import Tensor

from labkit import catalogue
from labkit.checks import Args, Check, Ranks, Rubric, Submission, run_checks

pytestmark = pytest.mark.usefixtures("course")


def one_more(tensor: Tensor) -> Tensor:
    return tensor + 1


def twice(tensor: Tensor) -> list[Any]:
    """Use the exercise twice."""
    from labkit.exercises import largest

    first = largest.largest(tensor)
    return [first.tolist(), largest.largest(one_more(first)).tolist()]


CALLING = """__all__ = ["largest"]
def largest(tensor, loss):
    return loss(tensor)
"""
"""Calls what it is given."""


def used() -> Any:
    """Use what the exercise returns."""
    from labkit.exercises import largest

    return largest.largest().rank


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


@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_a_function_of_scenarios_has_its_module_which_ranks_do_not_import(cluster: str) -> None:
    inputs = [torch.tensor([0.0, 5.0]), torch.tensor([3.0, 1.0])]
    run = Ranks(cluster)(2).call(of(SOLUTION).used_by(scenarios.doubled), inputs)
    assert run.values == [[[6.0, 10.0], 1, False]] * 2


class Tripling(Doubling):
    """Triples instead."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return super().__call__(tensor) * 3 // 2


def tripled(tensor: Tensor) -> list[Any]:
    """Use what a rubric's class makes of one of the scenarios."""
    triple = Tripling()
    return [triple(tensor).tolist(), triple.calls]


def test_a_rubric_s_function_may_build_on_a_part_of_scenarios() -> None:
    function = of(SOLUTION).used_by(tripled, Doubling, Tripling)
    assert Ranks()(1).call(function, [torch.tensor([1.0, 2.0])]).values == [[[3.0, 6.0], 1]]


def test_what_the_learner_s_code_calls_in_scenarios_fails_at_the_learner_s_line() -> None:
    run = Ranks()(2).attempt(of(CALLING).used_by(scenarios.called), lambda rank: torch.ones(2))
    assert run.first_failure is not None and run.first_failure.error is not None
    assert run.first_failure.error.where == "phase1_small/largest.py, line 3"


@pytest.mark.parametrize("function", [scenarios.used, used])
def test_where_a_check_fails_with_what_the_learner_returned_its_line_is_shown(function: Any) -> None:
    def misuses(submission: Submission, ranks: Ranks) -> None:
        ranks(2).call(submission.used_by(function), [Args()] * 2)

    rubric = Rubric(catalogue.find("largest"), [Check("misuses", "uses it", 1, "", misuses)], Path())
    (result,) = run_checks(rubric, of("def largest():\n    return None\n"), Ranks()).results
    assert result.seen.splitlines() == [
        "AttributeError on every rank: 'NoneType' object has no attribute 'rank'",
        "    where the check uses your module: return largest.largest().rank",
    ]
