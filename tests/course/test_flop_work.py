"""FlopWork: work is called in proportion to the FLOPs of operators, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from labkit.course.flop_work import FlopWork


def calls_within(unit: float, *functions: Callable[[], object]) -> list[int]:
    """Return how often work has been called after each of the functions."""
    calls: list[int] = []
    seen = []
    with FlopWork(lambda: calls.append(1), unit):
        for function in functions:
            function()
            seen.append(len(calls))
    return seen


def test_work_is_proportional_to_flops() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    product = x @ torch.ones(8, 3)
    # backward: the gradient of x alone
    steps = (lambda: x @ torch.ones(8, 3), lambda: x + x, lambda: product.sum().backward())
    assert calls_within(2 * 4 * 8 * 3, *steps) == [1, 1, 2]


def test_remainders_add_up() -> None:
    assert calls_within(3 * 2 * 8, *[lambda: torch.ones(1, 8) @ torch.ones(8, 1)] * 6) == [0, 0, 1, 1, 1, 2]


def test_masked_pairs_of_attention_are_no_work() -> None:
    q = torch.ones(1, 1, 16, 4)
    one_pair = 4 * 4
    assert calls_within(one_pair, lambda: scaled_dot_product_attention(q, q, q)) == [16 * 16]
    assert calls_within(one_pair, lambda: scaled_dot_product_attention(q, q, q, is_causal=True)) == [16 * 17 // 2]
