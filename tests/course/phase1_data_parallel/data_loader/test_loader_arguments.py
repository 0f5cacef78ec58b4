"""Arguments of samplers and loaders: each that cannot be used is named, with its limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.course.phase1_data_parallel.data_loader.given.arguments import (
    known_device,
    require_integer,
    require_iterable,
)


@pytest.mark.parametrize("bad", [-1, 4, True, 1.0, "1", None])
def test_an_integer_outside_its_limits_is_named(bad: Any) -> None:
    for good in range(4):
        require_integer("rank", good, at_least=0, below=4)
    with pytest.raises(ValueError, match=rf"^rank must be an integer from 0 to 3, got {bad!r}$"):
        require_integer("rank", bad, at_least=0, below=4)


def test_an_integer_without_upper_limit_may_be_large() -> None:
    require_integer("seed", 1 << 40, at_least=0)
    with pytest.raises(ValueError, match=r"^seed must be an integer from 1, got 0$"):
        require_integer("seed", 0, at_least=1)


def test_a_loader_is_iterable() -> None:
    require_iterable("loader", [1])
    with pytest.raises(ValueError, match=r"^loader must be something to iterate over, got 7$"):
        require_iterable("loader", 7)


@pytest.mark.parametrize("bad", ["nowhere", None, 1.5])
def test_a_device_that_torch_does_not_know_is_named(bad: Any) -> None:
    assert known_device("cpu") == known_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ValueError, match=rf"^device must be one that torch knows, got {bad!r}$"):
        known_device(bad)
