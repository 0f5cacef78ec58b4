"""Memory over time in a trace: the peak is that of the sum, and forged samples are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labkit.trace import Category, MemorySample, Trace

TRACE = Trace(
    2,
    clock="modelled",
    memory=(
        MemorySample(0, 0.0, Category.PARAMETER, 100),
        MemorySample(1, 0.0, Category.PARAMETER, 7),
        MemorySample(0, 1.0, Category.ACTIVATION, 50),
        MemorySample(0, 2.0, Category.ACTIVATION, 20),
        MemorySample(0, 2.0, Category.GRADIENT, 40),
        MemorySample(0, 3.0, Category.ACTIVATION, 0),
        MemorySample(0, 3.0, Category.OPTIMIZER, 20),
    ),
)


def test_the_peak_is_that_of_the_sum_not_of_each_category() -> None:
    assert TRACE.peak_memory(0) == 160
    held = {category: nbytes for category, nbytes in TRACE.peak_by_category(0).items() if nbytes}
    # the first moment at the peak: 100 + 20 + 40; later 100 + 40 + 20 is as much
    assert held == {Category.PARAMETER: 100, Category.ACTIVATION: 20, Category.GRADIENT: 40}
    assert TRACE.peak_memory(1) == 7


def test_a_trace_without_samples_has_no_peak() -> None:
    assert Trace(2).peak_memory(1) == 0
    assert set(Trace(2).peak_by_category(0)) == set(Category)


def test_plain_form_and_back() -> None:
    assert Trace.from_json(json.loads(json.dumps(TRACE.to_json()))).memory == TRACE.memory


def test_single_ranks_traces_become_one() -> None:
    parts = [Trace(2, memory=[s for s in TRACE.memory if s.rank == rank]) for rank in (1, 0)]
    merged = Trace.merged(parts)
    assert [s.time for s in merged.memory] == sorted(s.time for s in TRACE.memory)
    assert merged.peak_by_category(0) == TRACE.peak_by_category(0)


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, 2), (0, -1), (0, True), (1, 1), (1, float("inf")), (2, "luggage"), (3, -1), (3, 1.5), (3, 1 << 63)],
)
def test_forged_samples_are_refused(column: int, value: Any) -> None:
    data = json.loads(json.dumps(TRACE.to_json()))
    data["memory"][column][0] = value
    with pytest.raises(ValueError):
        Trace.from_json(data)


@pytest.mark.parametrize("memory", [None, {}, [[]], [[0], [], [], []]])
def test_memory_of_another_form_is_refused(memory: Any) -> None:
    with pytest.raises(ValueError):
        Trace.from_json({**TRACE.to_json(), "memory": memory})
