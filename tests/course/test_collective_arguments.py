"""Arguments of collectives: what cannot be used is named before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp

from labkit import Job, virtual
from labkit.course.collective_arguments import combining, contiguous, require_member


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (torch.ones(2, 3).t(), "a torch.float32 tensor of shape (3, 2)"),
        (torch.eye(2).to_sparse(), "a torch.float32 tensor of shape (2, 2) in layout torch.sparse_coo"),
        ([1.0], "[1.0]"),
    ],
)
def test_what_is_not_a_contiguous_tensor_is_named(bad: Any, shown: str) -> None:
    with pytest.raises(ValueError) as error:
        contiguous("shard", bad)
    assert str(error.value) == f"shard must be a contiguous tensor, got {shown}"


def test_a_parameter_is_written_in_place_without_a_trace_in_the_graph() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    contiguous("tensor", weight).fill_(2)
    assert weight.tolist() == [2.0] * 3 and weight.requires_grad and weight.grad_fn is None


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (ReduceOp.AVG, torch.int64),
        (ReduceOp.MAX, torch.complex64),
        (ReduceOp.BAND, torch.int64),
        ("sum", torch.float32),
    ],
)
def test_an_operation_that_the_dtype_does_not_have_is_named(op: Any, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"^op must be SUM, AVG, MAX, MIN or PRODUCT, one that suits {dtype}, got "):
        combining(op, dtype)


def test_an_average_is_added_up_and_divided_later() -> None:
    assert combining(ReduceOp.AVG, torch.float32) is combining(ReduceOp.SUM, torch.float32)


def test_a_root_outside_the_group_is_named() -> None:
    require_member("src", 3, [1, 3])
    with pytest.raises(ValueError, match=r"^dst must be one of the group's ranks, \[1, 3\], got 2$"):
        require_member("dst", 2, [1, 3])


IN_A_GROUP = """
import torch.distributed as dist
from labkit.course.collective_arguments import group_ranks

dist.init_process_group()
group = dist.new_group([2, 1])
try:
    value = group_ranks(group)
except ValueError as error:
    value = str(error)
[value, group_ranks(None)]
"""


def test_ranks_of_a_group_are_global_and_a_rank_outside_is_named() -> None:
    outside, *inside = virtual(nproc_per_node=3).run(Job(source=IN_A_GROUP)).raise_if_failed().values
    assert outside[0].startswith("group must contain this rank, 0, got ")
    assert [value[0] for value in inside] == [[1, 2]] * 2 and outside[1] == [0, 1, 2]
