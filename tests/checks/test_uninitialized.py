"""A check distinguishes elements that were never written from wrong results."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks.course import SOLUTION

from labkit import catalogue
from labkit.checks import CheckFailed, Ranks, Submission, expect, run_checks, visible_rubric
from labkit.clusters import Cluster
from labkit.clusters.virtual import virtual
from labkit.clusters.virtual.device.uninitialized import marked


def judged_ranks(*, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
    """Return ranks like the grader's."""
    options = {"account": False, "trusting": False, **hardware}
    return virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, ranks="processes", **options)


NOT_AWAITED = """
buffer, others = torch.empty_like(tensor), dist.get_world_size()
dist.isend(tensor, (dist.get_rank() + 1) % others)
dist.irecv(buffer, (dist.get_rank() - 1) % others)
return buffer
"""
HALF = """
result = torch.empty_like(tensor)
result[:2] = tensor.new_full((2,), 7.0)
return result
"""


@pytest.mark.usefixtures("course")
@pytest.mark.parametrize("ranks", ["virtual", judged_ranks], ids=["learners", "judged"])
@pytest.mark.parametrize(
    ("body", "never_written"),
    [("return torch.empty_like(tensor)", 4), (HALF, 2), (NOT_AWAITED, 4)],
    ids=["nobody wrote", "half written", "a receive not awaited"],
)
def test_elements_that_were_never_written_are_named_as_such(
    ranks: str | Callable[..., Cluster], body: str, never_written: int
) -> None:
    exercise = catalogue.find("largest")
    source = SOLUTION.replace("import torch.dis", "import torch\nimport torch.dis").replace(
        "    dist.all_reduce(tensor, dist.ReduceOp.MAX)", textwrap.indent(body.strip(), "    ")
    )
    report = run_checks(visible_rubric(exercise), Submission(exercise, source), Ranks(ranks))
    said = f": {never_written} of 4 elements were never written (uninitialized memory, as from torch.empty)"
    assert said in report.results[0].seen
    assert said in report.results[0].told


@pytest.mark.parametrize(
    ("seen", "expected", "said"),
    [
        (torch.tensor([-16843010]), torch.tensor([3]), ""),  # an int64 of eight bytes
        (torch.tensor([-16843010], dtype=torch.int32), torch.tensor([3], dtype=torch.int32), ": this is uninitialized"),
        (torch.tensor([254, 1], dtype=torch.uint8), torch.tensor([3, 1], dtype=torch.uint8), "element was perhaps"),
        (torch.tensor([-3.38948e38]), torch.tensor([3.0]), ": so large a number may come of adding uninitialized"),
        (torch.tensor([-2.0, 1.0]), torch.tensor([3.0, 1.0]), ""),
        (torch.tensor([True]), torch.tensor([False]), ""),
    ],
)
def test_only_what_is_certain_is_said_without_perhaps(seen: torch.Tensor, expected: torch.Tensor, said: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        expect(seen).equals(expected)
    assert said in caught.value.seen and ("uninitialized" in caught.value.seen) == bool(said)


def test_what_has_been_written_is_not_marked() -> None:
    pattern = torch.full((6,), 0xFE, dtype=torch.uint8)
    assert not marked(torch.tensor([1.0, float("nan")])).any()
    assert marked(pattern.repeat(4).view(torch.float64)[::2]).all()
    assert marked(pattern.repeat(8).view(torch.complex64)).all()
    assert not marked(torch.empty(0)).any()
