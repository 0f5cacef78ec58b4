"""Known costs are recovered from the times that they produce."""

from __future__ import annotations

import random

import pytest

from labkit.calibrate.fitting import NoFit, fit, line

SIZES = [float(1 << power) for power in range(10, 25, 2)]


def test_exact_times_give_latency_and_bandwidth_back() -> None:
    found = line(SIZES, [20e-6 + size / 3e9 for size in SIZES], "messages")
    assert found.costs[0] == pytest.approx(20e-6, rel=1e-9)
    assert 1 / found.costs[1] == pytest.approx(3e9, rel=1e-9)
    assert found.worst_error < 1e-9


def test_small_sizes_count_as_much_as_large_ones() -> None:
    """5 % of noise on every time: with absolute errors the latency would drown in the noise of the largest size."""
    noise = random.Random(7)
    times = [(20e-6 + size / 3e9) * noise.uniform(0.95, 1.05) for size in SIZES]
    found = line(SIZES, times, "messages")
    assert found.costs[0] == pytest.approx(20e-6, rel=0.1)
    assert 1 / found.costs[1] == pytest.approx(3e9, rel=0.1)
    assert 0 < found.median_error <= found.worst_error < 0.1


def test_errors_say_on_which_side_the_line_is() -> None:
    found = fit([(1.0,), (1.0,)], [1.0, 2.0])
    assert found.errors[0] > 0 > found.errors[1]
    assert found.errors == pytest.approx((found.costs[0] / 1 - 1, found.costs[0] / 2 - 1))


def test_three_costs_are_told_apart() -> None:
    """As for collectives: a base, hops, and bytes that an all-reduce sends twice."""
    amounts = [(1.0, turns * 3, turns * size) for turns in (1, 2) for size in SIZES]
    times = [50e-6 * base + 7e-6 * hops + 4e-10 * nbytes for base, hops, nbytes in amounts]
    assert fit(amounts, times).costs == pytest.approx((50e-6, 7e-6, 4e-10))


def test_no_cost_is_below_0() -> None:
    """Times that grow faster than a line would give a negative latency."""
    found = line([1.0, 2.0, 4.0], [1.0, 4.0, 16.0], "copies")
    assert found.costs[0] == 0 and found.costs[1] > 0


@pytest.mark.parametrize(
    ("sizes", "times", "said"),
    [
        ([1.0, 2.0, 4.0], [3.0, 2.0, 1.0], "copies: larger sizes took no longer"),
        ([1.0], [1.0], "1 times are too few for 2 costs"),
        ([], [], "too few"),
        ([1.0, 2.0], [0.0, 1.0], "not above 0"),
        ([1.0, 2.0], [float("nan"), 1.0], "not above 0"),
    ],
)
def test_times_that_make_no_line_are_refused(sizes: list[float], times: list[float], said: str) -> None:
    with pytest.raises(NoFit, match=said):
        line(sizes, times, "copies")
