"""Overlap and bubbles of traces with known answers."""

import pytest
from traces import collective, compute, gpipe, message, trace

from labkit.trace import Trace
from labkit.trace.busy import RankTime, busy


def test_communication_is_hidden_while_the_rank_computes() -> None:
    # rank 0 computes until 4; the all-reduce runs from 2, when rank 1 has joined, to 6
    times = busy(
        trace(2, compute(0, 0.0, 1.0), compute(0, 1.0, 4.0), compute(1, 0.0, 2.0), collective([1.0, 2.0], 6.0, 0))
    )
    assert times == [RankTime(0, 4.0, 2.0, 2.0, 0.0), RankTime(1, 2.0, 0.0, 4.0, 0.0)]
    assert [time.overlap for time in times] == [0.5, 0.0]


def test_waiting_for_a_late_rank_is_idle_not_communication() -> None:
    times = busy(trace(2, compute(0, 0.0, 4.0), message(0, 1, 4.0, 1.0, 5.0, 0)))
    assert times == [RankTime(0, 4.0, 0.0, 1.0, 0.0), RankTime(1, 0.0, 0.0, 1.0, 4.0)]


def test_messages_in_flight_together_count_once() -> None:
    (sender, *_) = busy(trace(3, message(0, 1, 0.0, 0.0, 2.0, 0), message(0, 2, 0.0, 0.0, 3.0, 1)))
    assert sender == RankTime(0, 0.0, 0.0, 3.0, 0.0)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (4, 4), (4, 16), (8, 3)])
def test_the_bubble_of_gpipe(stages: int, microbatches: int) -> None:
    for time in busy(gpipe(stages, microbatches)):
        assert time.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1))
        assert time.compute == 2 * microbatches


def test_an_idle_rank_and_an_empty_trace() -> None:
    assert busy(trace(2, compute(0, 0.0, 1.0)))[1] == RankTime(1, 0.0, 0.0, 0.0, 1.0)
    (nobody,) = busy(Trace(1))
    assert (nobody.overlap, nobody.bubble) == (0.0, 0.0)
