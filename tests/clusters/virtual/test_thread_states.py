"""What threads do, as the kernel sees it, also where they change that between two looks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from waiting import wait_until

from labkit.clusters.virtual.endpoints.thread_states import RESTLESS, RUNS, WAITS, ThreadStates, others_can_run
from labkit.linux import proc


@contextmanager
def thread_that_waits(event: threading.Event, lock: threading.Lock) -> Iterator[int]:
    """A thread that waits for the event, with a time limit, and then for the lock, without one. Yields its number."""

    def wait() -> None:
        event.wait(1000)
        with lock:
            pass

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        assert thread.native_id is not None
        try:
            yield thread.native_id
        finally:
            event.set()
    thread.join()


def state_at_rest(number: int) -> str:
    """What the thread does once it does not run any more."""
    states = ThreadStates()
    wait_until(lambda: states.of(number) != RUNS)
    return states.of(number)


def test_a_wait_has_a_time_limit_or_none() -> None:
    event, lock = threading.Event(), threading.Lock()
    with thread_that_waits(event, lock) as number:
        assert state_at_rest(number) == RESTLESS
        event.set()
        wait_until(lambda: state_at_rest(number) == WAITS)
    assert state_at_rest(number) == WAITS, "it has ended"


def test_a_thread_that_runs_between_two_looks_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    event, lock = threading.Event(), threading.Lock()
    read = proc.read

    def read_when_it_has_run_on(path: str, nbytes: int = -1) -> bytes:
        if path.endswith("/syscall"):
            patch.undo()
            event.set()
            wait_until(lambda: state_at_rest(number) == WAITS)
        return read(path, nbytes)

    with thread_that_waits(event, lock) as number:
        states = ThreadStates()
        wait_until(lambda: states.of(number) == RESTLESS)
        with monkeypatch.context() as patch:
            patch.setattr(proc, "read", read_when_it_has_run_on)
            assert states.of(number) == RUNS


def test_while_another_thread_computes_a_wait_may_be_for_it() -> None:
    event, lock, is_over = threading.Event(), threading.Lock(), threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            pass

    with thread_that_waits(event, lock) as number:
        computing = threading.Thread(target=compute)
        computing.start()
        wait_until(lambda: others_can_run(number))
        is_over.set()
        computing.join()
        wait_until(lambda: not others_can_run(number))
