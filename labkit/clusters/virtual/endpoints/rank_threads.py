"""A rank's own threads: they share its clock and its endpoint, which one thread uses at a time.

A rank sleeps when all of its threads wait: each for a request, or for something else, as in `queue.get()`. The kernel
tells whether the latter wait: a thread that sleeps, and has not run since the last check, does not compute.
Most wait for another thread of the rank. One that waits with a time limit, or for another process, may run on by itself
while the rank sleeps; it then asks for the rank's turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from labkit.clusters.virtual.endpoints.thread_states import RESTLESS, RUNS, WAITS, ThreadStates
from labkit.clusters.virtual.scheduler.requests import Timer

_LOOK_SECONDS = 0.0005


@dataclass(eq=False)
class _Wait:
    """The request that one thread waits for."""

    handle: Any
    limit: float
    over: bool = False


class SharedEndpoint:
    """The part of an endpoint that lets several threads of its rank use it."""

    threads: RankThreads | None = None
    """None as long as the rank has one thread."""
    observer: Callable[[Any, str, Sequence[Any]], None] | None = None

    def sleep_for_any(self, waits: Sequence[tuple[Any, float]], restless: bool) -> Collection[Any]:
        raise NotImplementedError

    def call_back(self) -> None:
        raise NotImplementedError

    def share(self: Any) -> RankThreads:
        """Let several threads use this endpoint: each method takes the rank's turn first."""
        if self.threads is None:
            threads = self.threads = RankThreads(self.sleep_for_any, self.call_back)
            post, wait = self.post, self.wait

            def wait_in_turn(handle: Any, move_clock: bool = True, timeout: float = inf) -> Any:
                with threads.turn():
                    threads.wait(handle, self.now + timeout)
                    return wait(handle, move_clock)

            def sleep(seconds: float) -> None:
                with threads.turn():
                    timer = post(Timer("", "sleep", "", seconds))
                    threads.wait(timer, inf)
                    wait(timer)

            for name in _QUICK:
                setattr(self, name, _in_turn(threads, getattr(self, name)))
            self.wait, self.sleep = wait_in_turn, sleep
        shared: RankThreads = self.threads
        return shared

    def close(self, failed: bool) -> None:
        """End the rank's program."""
        if self.threads is not None:
            self.threads.close(failed)

    def share_no_longer(self: Any, refuse: Callable[..., Any]) -> None:
        """Disable the endpoint in a forked copy, where it is unknown whose turn it is."""
        for name in (*_QUICK, "wait", "sleep") if self.threads is not None else ():
            setattr(self, name, refuse)


_QUICK = ("post", "work", "tick", "join_group", "leave_group", "done_at", "is_done")


def _in_turn(threads: RankThreads, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with threads.turn():
            return function(*args, **kwargs)

    return called


class RankThreads:
    """The threads of one rank, once it has started a second one."""

    def __init__(
        self,
        sleep_for_any: Callable[[Sequence[tuple[Any, float]], bool], Collection[Any]],
        call_back: Callable[[], None],
    ) -> None:
        """sleep_for_any: sleep until one of these handles is over or at its limit on the clock; returns which.

        call_back: ask for the rank's turn, from a thread other than the sleeping one.
        """
        self._sleep_for_any = sleep_for_any
        self._call_back = call_back
        self._turn = threading.Condition(threading.Lock())
        self._asleep = False
        self._paused = False
        self._ended_by: threading.Thread | None = None
        """The rank's own thread, once its program has ended."""
        self._waits: dict[threading.Thread, _Wait | None] = {}
        """Waits of this rank's threads; None: until others have ended."""
        self._entering: set[threading.Thread] = set()
        self._threads = {threading.current_thread()}
        # in a forked process threading still has the thread's old number
        self._first = threading.current_thread(), threading.get_native_id()
        self._states = ThreadStates()

    def begin(self, thread: threading.Thread) -> None:
        """Register a thread that the rank starts."""
        self._threads.add(thread)

    def end(self, thread: threading.Thread) -> None:
        """Remove a thread of the rank that has ended."""
        with self._turn:
            self._threads.discard(thread)
            if thread.native_id is not None:
                self._states.forget(thread.native_id)
            self._turn.notify_all()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within the context this thread has the rank's turn, and no other thread of the rank makes a request."""
        me = threading.current_thread()
        self._entering.add(me)  # from now on it counts as running, whatever the kernel says
        with self._turn:
            while self._asleep or self._paused:
                if self._asleep:
                    self._call_back()
                self._turn.wait()
            self._entering.discard(me)
            if self._ended_by not in (None, me):
                raise SystemExit  # the rank's program has ended: its remaining threads end here
            yield

    def wait(self, handle: Any, limit: float) -> None:
        """Within `turn`: let other threads and other ranks run until the request is over. It fails at `limit`."""
        me = threading.current_thread()
        mine = self._waits[me] = _Wait(handle, limit)
        try:
            while not mine.over and self._ended_by is None:
                self._let_others_run()
            if self._ended_by is not None:
                raise SystemExit
        finally:
            del self._waits[me]

    def close(self, failed: bool) -> None:
        """At the end of the rank's program: wait for its threads as Python does, but not for those that never go on.

        failed: do not wait, so that other ranks learn of the failure.
        """
        if not failed:
            self._wait_for_others()
        with self.turn():
            self._ended_by = threading.current_thread()
            self._turn.notify_all()

    def pause(self, failed: bool) -> None:
        """At the end of a cell on a live rank: like `close`, but the remaining threads go on after `resume`."""
        if not failed:
            self._wait_for_others()
        with self.turn():
            self._paused = True

    def resume(self) -> None:
        """Let the rank run another cell."""
        with self._turn:
            self._paused = False
            self._turn.notify_all()

    def _wait_for_others(self) -> None:
        me = threading.current_thread()
        with self.turn():
            self._waits[me] = None
            try:
                while self._somebody_goes_on(self._threads - {me}):
                    self._let_others_run()
            finally:
                del self._waits[me]

    def _somebody_goes_on(self, others: set[threading.Thread]) -> bool:
        """Whether one of these that is no daemon goes on by itself, or waits for a lock that a running one may hold."""
        if all(thread.daemon for thread in others):
            return False
        states = {thread: self._state(thread) for thread in others - self._waits.keys()}
        return RUNS in states.values() or any(not thread.daemon and states.get(thread) != WAITS for thread in others)

    def _let_others_run(self) -> None:
        if self._asleep or self._paused:
            self._turn.wait()
            return
        states = {self._state(thread) for thread in self._threads - self._waits.keys()}
        waits = [wait for wait in self._waits.values() if wait is not None]
        if RUNS in states or not waits or any(wait.over for wait in waits):
            self._turn.wait(_LOOK_SECONDS)
            return
        self._asleep = True
        self._turn.release()
        try:
            over = self._sleep_for_any([(wait.handle, wait.limit) for wait in waits], RESTLESS in states)
        finally:
            self._turn.acquire()
            self._asleep = False
            self._turn.notify_all()
        # only one goes on, in the order in which they began to wait
        for wait in waits:
            if wait.handle in over:
                wait.over = True
                break

    def _state(self, thread: threading.Thread) -> str:
        """State of a thread that waits for no request."""
        number = self._first[1] if thread is self._first[0] else thread.native_id
        if thread in self._entering or number is None:
            return RUNS
        return self._states.of(number)
