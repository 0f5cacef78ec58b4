"""The rank of the running thread. A rank's state is found from here, so switching ranks costs nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from labkit import exercises
from labkit.torch_versions.ranks import hand_on_world

if TYPE_CHECKING:
    import random

    import numpy

    from labkit.clusters.virtual.endpoints.endpoint import Endpoint
    from labkit.clusters.virtual.isolation.clocks import RankClock


@dataclass(eq=False)
class Rank:
    """State that a rank would have in a process of its own."""

    number: int
    environment: dict[str, str | None] = field(default_factory=dict)
    """Changes to the process's environment variables; None hides a variable."""
    modules: dict[str, ModuleType] = field(default_factory=dict)
    """The learner's modules, including `__main__`."""
    builtins: ModuleType | None = None
    random: random.Random | None = None
    numpy_random: numpy.random.RandomState | None = None
    handlers: dict[int, Any] = field(default_factory=dict)
    """Signal handlers, by number."""
    in_thread: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context manager around the work of threads that the rank starts."""
    exit_functions: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


class _Here(threading.local):
    rank: Rank | None = None
    """Rank of this thread: its main thread, or one that it started."""
    endpoint: Endpoint | None = None
    """Its connection to the scheduler."""
    clock: RankClock | None = None
    """Its clock."""
    is_started: bool = False
    """Whether a rank has started this thread."""


here = _Here()
_host = os.getpid()


def follow_threads() -> None:
    """Let threads that a rank starts work for that rank; the scheduler cannot reach processes that it forks."""
    begin()
    start = threading.Thread.start

    def start_for_rank(self: threading.Thread) -> None:
        rank, endpoint, clock = here.rank, here.endpoint, here.clock
        if endpoint is None:
            start(self)
            return
        run, adopt_exercises, adopt_world = self.run, exercises.hand_on(), hand_on_world()
        threads = endpoint.share()

        def run_for_rank() -> None:
            here.rank, here.endpoint, here.clock, here.is_started = rank, endpoint, clock, True
            adopt_exercises()
            adopt_world()
            try:
                with torch.autograd.set_multithreading_enabled(False), rank.in_thread() if rank else nullcontext():
                    run()
            finally:
                threads.end(self)

        self.run = run_for_rank  # type: ignore[method-assign]
        threads.begin(self)
        try:
            start(self)
        except BaseException:
            threads.end(self)
            raise

    threading.Thread.start = start_for_rank  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=_leave_scheduler)


def begin() -> None:
    """Mark this process as the scheduler's or a rank's: the scheduler cannot reach processes forked from now on."""
    global _host
    _host = os.getpid()


def _leave_scheduler() -> None:
    if here.endpoint is not None:
        here.endpoint.cut_off()
        here.endpoint = here.clock = None


def is_forked() -> bool:
    """Whether a rank has forked this process."""
    return os.getpid() != _host


def endpoint() -> Any:
    """The running rank's connection to the scheduler. Raises RuntimeError if there is none."""
    if here.endpoint is None:
        raise RuntimeError("torch.distributed can be used in threads of a rank only, started by threading.Thread")
    return here.endpoint
