"""Slots of given orders, and what a step of a stage needs."""

from __future__ import annotations

import pytest

from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import (
    StageStep,
    bubble_fraction,
    most_in_flight,
    schedule_orders,
)

FORWARD, BACKWARD = ("forward", 0, 0), ("backward", 0, 0)


def test_each_step_gets_the_earliest_possible_slot() -> None:
    schedule = schedule_orders([[FORWARD, BACKWARD], [FORWARD, BACKWARD]])
    assert schedule == [(0, 0, *FORWARD), (1, 1, *FORWARD), (2, 1, *BACKWARD), (3, 0, *BACKWARD)]
    assert bubble_fraction(schedule) == 0.5
    assert most_in_flight(schedule) == [1, 1]


def test_a_second_chunk_starts_when_the_last_rank_has_done_the_first() -> None:
    schedule = schedule_orders([[("forward", 0, 0), ("forward", 0, 1)]] * 2)
    assert [(action.time, action.stage, action.chunk) for action in schedule] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]


def test_orders_that_wait_for_each_other_are_refused() -> None:
    words = "all wait for each other after 1 actions: rank 0 at backward 0, rank 1 at backward 0"
    with pytest.raises(ValueError, match=words):
        schedule_orders([[FORWARD, BACKWARD], [BACKWARD, FORWARD]])


def test_a_backward_needs_its_forward_and_the_next_stage_s_backward() -> None:
    assert StageStep("forward", 0, 5).prerequisites(3) == []
    assert StageStep("forward", 2, 5).prerequisites(3) == [("forward", 1, 5)]
    assert StageStep("backward", 1, 5).prerequisites(3) == [("forward", 1, 5), ("backward", 2, 5)]
    assert StageStep("backward", 2, 5).prerequisites(3) == [("forward", 2, 5)]
