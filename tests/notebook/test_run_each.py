"""Several runs in one cell."""

from __future__ import annotations

from labkit.notebook import run_each


def test_results_come_by_value_outside_of_a_notebook() -> None:
    assert run_each([1, 2, 4], lambda ranks: ranks**2, "ranks") == {1: 1, 2: 4, 4: 16}
    assert run_each([], str, "ranks") == {}
