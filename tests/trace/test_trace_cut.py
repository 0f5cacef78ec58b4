"""Parts of a trace: after the last barrier, and after start-up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from traces import collective, compute, message, trace

from labkit.trace import Category, Event, Membership, MemorySample, Trace

WARM_UP = [
    *[compute(rank, 0.0, 1.0) for rank in range(2)],
    *collective([1.0, 1.0], 2.0, 0, "barrier"),
]
STEP = [compute(0, 5.0, 6.0), compute(1, 5.5, 6.5), *message(0, 1, 6.0, 6.5, 7.0, 0)]


def second_barrier(ends: tuple[float, float]) -> list[Event]:
    first, second = collective([3.0, 4.0], 5.0, 1, "barrier")
    return [first._replace(end=ends[0]), second._replace(end=ends[1])]


def test_since_barrier_is_what_ranks_began_after_the_last_one() -> None:
    whole = trace(2, WARM_UP, second_barrier((5.0, 5.0)), STEP)
    assert list(whole.since_barrier().events) == list(trace(2, STEP).events)
    assert whole.since_barrier().groups == whole.groups and whole.since_barrier().clock == "modelled"


def test_each_rank_begins_when_it_leaves_the_barrier() -> None:
    # on real processes rank 0 may send before rank 1 has left
    early = trace(2, WARM_UP, second_barrier((5.0, 5.2)), STEP)
    assert list(early.since_barrier().events) == list(trace(2, STEP).events)


def test_a_barrier_of_some_ranks_does_not_count() -> None:
    pair = [event._replace(group="pair") for event in collective([6.0], 6.1, 0, "barrier")]
    whole = trace(2, WARM_UP, STEP, pair)
    assert list(whole.since_barrier().events) == list(trace(2, STEP, pair).events)
    with pytest.raises(ValueError, match=r"no barrier of all 2 ranks: call dist.barrier\(\) on every rank"):
        trace(2, STEP, pair).since_barrier()


def test_memory_begins_with_what_was_held() -> None:
    def sample(time: float, category: Category, nbytes: int) -> MemorySample:
        return MemorySample(0, time, category, nbytes)

    parameters = sample(0.0, Category.PARAMETER, 8)
    peak, after = sample(0.5, Category.ACTIVATION, 100), sample(0.6, Category.ACTIVATION, 0)
    gradients = sample(3.0, Category.GRADIENT, 8)
    whole = replace(trace(2, WARM_UP, STEP), memory=(parameters, peak, after, gradients))
    since = whole.since_barrier()
    assert since.memory == (parameters._replace(time=2.0), after._replace(time=2.0), gradients)
    assert whole.peak_memory(0) == 108 and since.peak_memory(0) == 16


def test_start_up_ends_with_the_first_process_group() -> None:
    joined = [Membership(rank, "0", "gloo", time, None) for rank, time in ((0, 1.0), (1, 1.2), (0, 5.5), (1, 5.5))]
    started = replace(trace(2, compute(0, 0.0, 0.9), compute(1, 0.1, 1.1), STEP), memberships=joined)
    assert list(started.without_start_up().events) == list(trace(2, STEP).events)
    assert started.without_start_up().without_start_up() == started.without_start_up()
    assert Trace(2).without_start_up() == Trace(2)
