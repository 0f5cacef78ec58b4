"""The clock that counts the time processes would take alone, for known schedules."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from labkit.clusters.forkserver.load_clock import LinuxKernel, LoadClock, ThreadTimes


class Schedule:
    """A simulated machine: `pass_time` sets what its threads do."""

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.time = self.busy = 0.0
        self.all: dict[int, ThreadTimes] = {}

    def now(self) -> float:
        return self.time

    def threads(self) -> dict[int, ThreadTimes]:
        return dict(self.all)

    def busy_seconds(self) -> float:
        return self.busy

    def pass_time(self, seconds: float, threads: Sequence[tuple[float, float]], others: float) -> None:
        """Each thread has run, and waited for a core, for these parts of the time; others used so many cores."""
        self.time += seconds
        for number, (ran, waited) in enumerate(threads):
            before = self.all.get(number, ThreadTimes(0.0, 0.0))
            self.all[number] = ThreadTimes(before.running + ran * seconds, before.waiting + waited * seconds)
            self.busy += ran * seconds
        self.busy += others * seconds


def shown(threads: Sequence[tuple[float, float]], others: float, cores: int = 2) -> float:
    """Return what the clock shows after ten seconds."""
    kernel = Schedule(cores)
    clock = LoadClock(kernel)
    for _ in range(50):
        kernel.pass_time(0.2, threads, others)
        clock.seconds()
    return clock.seconds()


def test_time_passes_for_who_sleeps_and_for_who_has_a_core() -> None:
    assert shown([(0.0, 0.0)], others=2.0) == approx(10)
    assert shown([(1.0, 0.0)], others=1.0) == approx(10)
    assert shown([], others=2.0) == approx(10)


def test_what_others_take_is_no_time() -> None:
    assert shown([(0.25, 0.75)], others=1.75) == approx(2.5)
    # it sleeps half of the time; of its computing it gets a third
    assert shown([(0.1, 0.2)], others=1.9) == approx(8.0)
    # four ranks on two cores need twice as long as one, even without other load
    assert shown([(0.5, 0.5)] * 4, others=0.0) == approx(10)
    assert shown([(0.1, 0.9)] * 4, others=1.6) == approx(2.0)


def test_threads_of_its_own_do_not_stop_the_clock() -> None:
    assert shown([(0.02, 0.98)] * 100, others=0.0) == approx(10)
    # they wake at the same moment and sleep again, so that each waits for the others
    assert shown([(0.005, 0.2)] * 100, others=0.0) == approx(10)
    assert shown([(0.005, 0.2)] * 100, others=0.2) == approx(9.0)
    # however busy the machine is, the clock advances
    assert shown([(0.0, 1.0)], others=2.0) == approx(0.2)


def test_a_wait_counts_while_it_is_under_way_and_only_once() -> None:
    kernel = Schedule(cores=1)
    kernel.all[0] = ThreadTimes(1.0, 0.0)
    clock = LoadClock(kernel)
    for waiting, queued in ((0.0, True), (0.0, True), (3.0, False)):
        kernel.time, kernel.busy = kernel.time + 1.0, kernel.busy + 1.0
        kernel.all[0] = ThreadTimes(1.0, waiting, queued)
        clock.seconds()
    assert clock.seconds() == approx(3 * 0.02)


def test_a_wait_that_is_seen_late_is_taken_off_where_it_began() -> None:
    kernel = Schedule(cores=1)
    kernel.all[0] = ThreadTimes(1.0, 0.0)
    clock = LoadClock(kernel)
    for running, waiting in ((1.5, 0.0), (1.5, 1.5), (2.5, 1.5)):  # it waits from 0.5 s to 2 s
        kernel.time, kernel.busy = kernel.time + 1.0, kernel.busy + 1.0
        kernel.all[0] = ThreadTimes(running, waiting)
        clock.seconds()
    assert 1.5 <= clock.seconds() < 1.8


@given(
    st.lists(
        st.tuples(st.floats(0.1, 1.0), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1))), st.floats(0, 4)),
        max_size=20,
    ),
    st.integers(1, 4),
)
def test_it_never_goes_back_never_stands_still_and_is_never_fast(
    intervals: list[tuple[float, list[tuple[float, float]], float]], cores: int
) -> None:
    kernel = Schedule(cores)
    clock = LoadClock(kernel)
    before = 0.0
    for seconds, threads, others in intervals:
        kernel.pass_time(seconds, threads, others)
        now = clock.seconds()
        assert before <= now <= kernel.time + 1e-9
        before = now
    assert clock.seconds() >= 0.019 * kernel.time


def test_the_kernel_knows_every_thread_of_the_processes_that_are_asked_for() -> None:
    done = threading.Event()
    more = [threading.Thread(target=done.wait) for _ in range(3)]
    for thread in more:
        thread.start()
    kernel = LinuxKernel(lambda: [os.getpid(), 1 << 30])
    found = kernel.threads()
    done.set()
    assert {thread.native_id for thread in (threading.current_thread(), *more)} <= found.keys()
    assert found[threading.get_native_id()].running > 0
    assert kernel.busy_seconds() > 0 and 1 <= kernel.cores <= (os.cpu_count() or 1)
