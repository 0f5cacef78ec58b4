"""The solution of activation_checkpointing: compared with torch's own, and in any graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torchs

from labkit import exercises
from labkit.catalogue import Exercise

EXERCISE = Exercise("phase2_advanced/activation_checkpointing")
solution = exercises.load(EXERCISE, EXERCISE.source("solution")[0])


def gradients(run: Any, model: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    x.grad = None
    result = run(x)
    numbers = [torch.rand(2)]
    result.square().mean().backward()
    return [result.detach(), *numbers, torch.rand(2), x.grad, *(p.grad.clone() for p in model.parameters())]  # type: ignore[union-attr]


@settings(max_examples=12)
@given(
    layers=st.integers(1, 9),
    width=st.integers(1, 9),
    rows=st.integers(0, 4),
    dropout=st.sampled_from([0.0, 0.5]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 1 << 30),
    data=st.data(),
)
def test_any_segments_are_plain_calls_to_the_bit(
    layers: int, width: int, rows: int, dropout: float, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    first = nn.Linear(width, width)
    blocks = [nn.Sequential(nn.LayerNorm(width), first, nn.GELU(), nn.Dropout(dropout)) for _ in range(layers)]
    model = nn.Sequential(*blocks).to(dtype)  # one weight in all of them
    x = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    segments = data.draw(st.integers(1, layers))
    wanted = gradients(model, model, x, seed)
    cut = gradients(lambda x: solution.checkpoint_sequential(model, segments, x), model, x, seed)
    whole = gradients(lambda x: solution.checkpoint(model, x), model, x, seed)
    library = gradients(lambda x: torchs(model, x, use_reentrant=False), model, x, seed)

    def offloaded(x: Tensor) -> Tensor:
        with solution.offload_activations():
            result: Tensor = solution.checkpoint(lambda t: solution.checkpoint(model, t) * 1, x)
        return result

    for seen in (cut, whole, library, gradients(offloaded, model, x, seed)):
        for one, right in zip(seen, wanted, strict=True):
            torch.testing.assert_close(one, right, rtol=0, atol=0, equal_nan=True)


def test_gradients_may_be_asked_for_in_any_way() -> None:
    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    calls = []

    def function(t: Tensor) -> Tensor:
        calls.append(1)
        return (w * t**3).sin()

    result = solution.checkpoint(function, x).sum()
    wanted = torch.autograd.grad(function(x).sum(), (x, w))
    calls.clear()
    for number in (1, 2):  # each backward pass through a retained graph computes once
        assert all(map(torch.equal, torch.autograd.grad(result, (x, w), retain_graph=True), wanted))
        assert len(calls) == number
    assert torch.equal(torch.autograd.grad(result, w)[0], wanted[1])
    assert torch.autograd.gradgradcheck(lambda t: solution.checkpoint(function, t), x)


def test_a_function_that_does_something_else_the_second_time_is_an_error() -> None:
    x, calls = torch.ones(3, requires_grad=True), []

    def function(t: Tensor) -> Tensor:
        calls.append(1)
        return t.exp().sin() if len(calls) == 1 else t * 2

    with pytest.raises(RuntimeError, match="saved 2 tensors for its backward pass, but 0 when"):
        solution.checkpoint(function, x).sum().backward()


def test_random_numbers_are_put_back_when_the_second_call_fails() -> None:
    calls = []

    def function(t: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return nn.functional.dropout(t, 0.5)

    result = solution.checkpoint(function, torch.ones(3, requires_grad=True))
    state = torch.get_rng_state()
    with pytest.raises(OSError, match="the disk is gone"):
        result.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("device", ["nowhere", "meta", 1.5])
def test_a_device_that_cannot_hold_values_is_named(device: Any) -> None:
    with pytest.raises(ValueError, match=str(device)), solution.offload_activations(device):
        pass
