"""Arguments of a process group and of metrics: each that cannot be used is named, with its value."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from labkit.course.phase1_data_parallel.process_group.given.arguments import metric_value, require_process_group

GOOD: dict[str, Any] = {"backend": "gloo", "init_method": "env://", "world_size": 4, "rank": 3, "local_rank": 0}


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("world_size", 0, "world_size must be an integer from 1, got 0"),
        ("world_size", True, "world_size must be an integer from 1, got True"),
        ("rank", -1, "rank must be an integer from 0 to 3, got -1"),
        ("rank", 4, "rank must be an integer from 0 to 3, got 4"),
        ("local_rank", 5, "local_rank must be an integer from 0 to 3, got 5"),
        ("backend", "pigeon", "backend must be one that torch knows, such as gloo or nccl, got 'pigeon'"),
        ("backend", "undefined", "backend must be one that torch knows, such as gloo or nccl, got 'undefined'"),
        ("init_method", "http://a", "init_method must begin with env://, tcp:// or file://, got 'http://a'"),
    ],
)
def test_what_no_process_group_can_be_made_of_is_named(name: str, bad: Any, message: str) -> None:
    require_process_group(**GOOD)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        require_process_group(**{**GOOD, name: bad})


@pytest.mark.parametrize(
    ("bad", "shown"),
    [(torch.ones(2), "a torch.float32 tensor of shape (2,)"), ("high", "'high'"), (1j, "1j"), (None, "None")],
)
def test_a_metric_is_a_number(bad: Any, shown: str) -> None:
    assert [metric_value("loss", value) for value in (2, 0.5, torch.ones(1, 1, requires_grad=True))] == [2.0, 0.5, 1.0]
    message = f"metrics['loss'] must be a number or a tensor of one element, got {shown}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        metric_value("loss", bad)
