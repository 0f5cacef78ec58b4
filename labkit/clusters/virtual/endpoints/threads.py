"""Virtual ranks as threads of one process. Exactly one runs at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, NoReturn

import torch

from labkit.clusters.virtual.endpoints.endpoint import KnownTimes, refuse_after_fork
from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
from labkit.clusters.virtual.endpoints.shared_endpoint import SharedEndpoint
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.clusters.virtual.scheduler.requests import Request
from labkit.linux.libc import libc

# Python and autograd recurse deeply in large models; the memory is reserved, not used
RANK_STACK_BYTES = 16 << 20


class ThreadRanks:
    """Runs `program(endpoint)` on every rank of the engine, one thread each."""

    def __init__(
        self, engine: Engine, program: Callable[[ThreadEndpoint], bool], resume: Callable[[int], object]
    ) -> None:
        """program: returns whether the rank failed; never raises. resume: called when a rank takes its turn."""
        self._engine = engine
        self._program = program
        self._resume = resume
        world_size = engine.topology.world_size
        self._batons = [threading.Lock() for _ in range(world_size)]
        self._all_ended = threading.Event()
        self._calls: set[int] = set()
        self._called = threading.Lock()
        """Released when a thread of a sleeping rank calls. Not an `Event`: these are replaced on ranks."""
        self._called.acquire()
        engine.called_back = self._called_back

    def run(self) -> None:
        """Return when all ranks have ended."""
        stay_together(libc.sched_getcpu())
        previous = threading.stack_size(RANK_STACK_BYTES)
        try:
            threads = [
                threading.Thread(target=self._main, args=(rank,), name=f"rank {rank}", daemon=True)
                for rank in range(len(self._batons))
            ]
            for baton in self._batons:
                baton.acquire()
            for thread in threads:
                thread.start()
        finally:
            threading.stack_size(previous)
        self._hand_over()
        self._all_ended.wait()

    def switch(self, rank: int) -> None:
        """Let other ranks run until it is this rank's turn again."""
        following = self._engine.next_rank()
        if following != rank:
            assert following is not None
            self._batons[following].release()
            self._take_turn(rank)

    def call_back(self, rank: int) -> None:
        """Give a thread of a sleeping rank its turn."""
        self._calls.add(rank)
        with suppress(RuntimeError):  # somebody else has called, too
            self._called.release()

    def _called_back(self, until_one: bool) -> int | None:
        while True:
            self._called.acquire(blocking=False)
            for rank in sorted(self._calls & self._engine.waiting.several.keys()):
                self._calls.discard(rank)
                return rank
            if not until_one:
                return None
            self._called.acquire()

    def _take_turn(self, rank: int) -> None:
        self._batons[rank].acquire()
        self._resume(rank)

    def _main(self, rank: int) -> None:
        self._take_turn(rank)
        # threads that the rank starts are daemons only when it asks for that
        threading.current_thread()._daemonic = False  # type: ignore[attr-defined]  # the property is fixed by now
        # a backward pass must stay in its rank's thread
        with torch.autograd.set_multithreading_enabled(False):
            failed = self._program(ThreadEndpoint(self, self._engine, rank))
        self.end(rank, failed)

    def end(self, rank: int, failed: bool) -> None:
        """End the rank's program and let others run."""
        self._engine.end(rank, failed)
        self._hand_over()

    @property
    def all_rest(self) -> bool:
        """Whether no rank runs or will run."""
        return self._all_ended.is_set()

    def rest(self, rank: int, failed: bool) -> None:
        """End the rank's program; return when `go_on` has another one for it."""
        self.end(rank, failed)
        self._take_turn(rank)

    def go_on(self, ranks: Iterable[int]) -> None:
        """Wake resting ranks, and return when all rest again or have ended."""
        self._all_ended.clear()
        self._engine.go_on(ranks)
        self._hand_over()
        self._all_ended.wait()

    def _hand_over(self) -> None:
        following = self._engine.next_rank()
        if following is None:
            self._all_ended.set()
        else:
            self._batons[following].release()


class ThreadEndpoint(SharedEndpoint, KnownTimes):
    """A thread rank's connection to the scheduler: it calls the engine directly, since only one rank runs at a time."""

    def __init__(self, ranks: ThreadRanks, engine: Engine, rank: int) -> None:
        self.rank = rank
        self._ranks = ranks
        self._engine = engine
        self._never = threading.Lock()
        self.race_detector = RaceDetector()
        # bound directly to the engine, without a wrapper
        self.post: Callable[..., Request] = partial(engine.post, rank)
        self.compute: Callable[..., None] = partial(engine.computing.compute, rank)

    @property
    def now(self) -> float:
        """This rank's virtual clock, in seconds."""
        return self._engine.clock[self.rank]

    def join_group(self, name: str, ranks: tuple[int, ...], backend: str) -> None:
        self._engine.join_group(self.rank, name, ranks, backend)

    def leave_group(self, name: str) -> None:
        self._engine.leave_group(self.rank, name)

    def wait(self, request: Request, move_clock: bool = True, timeout: float = inf) -> tuple[Any, int]:
        if self._engine.must_sleep(self.rank, request, timeout):
            self._ranks.switch(self.rank)
        return self._engine.waiting.finish(self.rank, request, move_clock), request.source

    def sleep_for_any(self, waits: Sequence[tuple[Request, float]], restless: bool) -> Collection[Request]:
        if self._engine.must_sleep_for_any(self.rank, waits, restless):
            self._ranks.switch(self.rank)
        return [request for request, _ in waits if self._engine.waiting.is_over(self.rank, request)]

    def call_back(self) -> None:
        self._ranks.call_back(self.rank)

    def forget(self, request: Request) -> None:
        pass

    def is_done(self, request: Request) -> bool:
        self._step_aside()
        return self._engine.is_done(self.rank, request)

    def done_at(self, request: Request) -> float:
        assert request.done_at is not None
        return request.done_at

    def period(self, request: Request) -> tuple[float, float | None]:
        return request.posted, request.done_at

    def work(self, name: str, seconds: float) -> None:
        self._engine.computing.work(self.rank, name, seconds)

    def sleep(self, seconds: float) -> None:
        self._engine.computing.sleep(self.rank, seconds)
        self._step_aside()

    def tick(self, seconds: float) -> None:
        self._engine.clock[self.rank] += seconds

    @contextmanager
    def keeping_turn(self, why: str) -> Iterator[None]:
        def refuse(rank: int) -> NoReturn:
            raise RuntimeError(why)

        switch, self._ranks.switch = self._ranks.switch, refuse  # type: ignore[method-assign]
        try:
            yield
        finally:
            self._ranks.switch = switch  # type: ignore[method-assign]

    def cut_off(self) -> None:
        self.share_no_longer(refuse_after_fork)
        self._ranks.switch = refuse_after_fork  # type: ignore[assignment,method-assign]

    def leave(self, failed: bool) -> NoReturn:
        """End this rank at once: none of its code runs on, as after `os._exit`."""
        self._ranks.end(self.rank, failed)
        for _ in range(2):  # the second time nobody releases it
            self._never.acquire()
        raise AssertionError

    def _step_aside(self) -> None:
        while self._engine.is_ahead(self.rank):
            self._engine.step_aside(self.rank)
            self._ranks.switch(self.rank)


def stay_together(here: int) -> None:
    """Keep all threads on CPU `here`, as one runs at a time: switching is faster by half, and caches stay warm.

    Processes that a rank starts, such as the workers of a DataLoader, may run anywhere.
    """
    if torch.get_num_threads() > 1 or not hasattr(os, "sched_setaffinity"):
        return
    everywhere = os.sched_getaffinity(0)
    if here in everywhere:
        os.sched_setaffinity(0, {here})
        os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, everywhere))
    # a thread that is woken must not preempt the one that wakes it
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
