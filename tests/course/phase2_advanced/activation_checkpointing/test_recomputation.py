"""A call repeated as it was: its arguments, autocast and random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.course.phase2_advanced.activation_checkpointing.given.offloading import is_parameter, storage_device
from labkit.course.phase2_advanced.activation_checkpointing.given.recomputation import (
    SavedArguments,
    SavedAutocast,
    devices_of,
    random_states,
    set_random_states,
)


def test_arguments_come_back_without_their_graph() -> None:
    leaf = torch.ones(3, requires_grad=True)
    arguments = SavedArguments([2 * leaf, "mean", torch.zeros(2), None])
    tensor, word, plain, nothing = arguments.again()
    assert tensor.requires_grad and tensor.is_leaf and torch.equal(tensor, 2 * leaf)
    assert (word, nothing) == ("mean", None) and not plain.requires_grad


def test_an_argument_that_was_changed_in_place_is_an_error() -> None:
    tensor = torch.ones(3)
    arguments = SavedArguments([tensor])
    tensor.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        arguments.again()


def test_autocast_is_as_it_was_and_ends_with_the_context() -> None:
    cpu = devices_of([])
    with torch.autocast("cpu", torch.float16):
        saved = SavedAutocast(cpu)
    for _ in range(2):
        with saved:
            assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16
        assert not torch.is_autocast_enabled("cpu")


def test_random_numbers_are_drawn_again() -> None:
    cpu = devices_of([torch.zeros(2), "cuda"])
    assert cpu == {torch.device("cpu")}
    states = random_states(cpu)
    first = torch.rand(4)
    set_random_states(states)
    assert torch.equal(torch.rand(4), first)


@pytest.mark.parametrize("device", ["nowhere", "meta", 1.5])
def test_a_device_that_cannot_hold_values_is_named(device: Any) -> None:
    with pytest.raises(ValueError, match=f"^device must .*, got {device!r}$"):
        storage_device(device)


def test_a_view_of_a_parameter_counts_as_one() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert is_parameter(weight) and is_parameter(weight.t())
    assert not is_parameter(weight * 1) and not is_parameter(torch.ones(2))
