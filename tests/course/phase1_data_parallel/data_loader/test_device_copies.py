"""Copies of batches: the containers are kept, and what is no tensor stays as it is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.course.phase1_data_parallel.data_loader.given.device_copies import DeviceCopies


class Pair(NamedTuple):
    inputs: Tensor
    name: str


def test_tensors_are_copied_wherever_they_are_in_a_batch() -> None:
    x = torch.arange(3.0)
    copies = DeviceCopies(torch.device("meta"))
    batch = {"pair": Pair(x, "a"), "rest": [x, (x, 7)]}
    copy = copies.hand_over(copies.make(batch))
    assert copy["pair"].name == "a" and copy["pair"].inputs.is_meta
    first, (second, number) = copy["rest"]
    assert first.is_meta and second.is_meta and number == 7
    assert isinstance(copy["rest"], list) and isinstance(copy["rest"][1], tuple)
    assert not x.is_meta


def test_on_the_device_where_it_is_nothing_is_copied() -> None:
    x = torch.arange(3.0)
    assert DeviceCopies(torch.device("cpu")).make(x) is x
