"""Which rank the running thread works for. What a rank has is found from here, so switching ranks costs nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit import exercises

if TYPE_CHECKING:
    import random

    import numpy

    from labkit.clusters.virtual.endpoint import Endpoint
    from labkit.clusters.virtual.isolation.clocks import RankClock


@dataclass(eq=False)
class Rank:
    """What one rank would have in a process of its own."""

    number: int
    environment: dict[str, str | None] = field(default_factory=dict)
    """A layer over the process's variables; None hides one."""
    modules: dict[str, ModuleType] = field(default_factory=dict)
    """The learner's modules, `__main__` among them."""
    builtins: ModuleType | None = None
    random: random.Random | None = None
    numpy_random: numpy.random.RandomState | None = None
    handlers: dict[int, Any] = field(default_factory=dict)
    """Signal handlers, by number."""
    exit_functions: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


class _Here(threading.local):
    rank: Rank | None = None
    """Whose thread this is: the rank's own, or one that it started."""
    endpoint: Endpoint | None = None
    """Line to the scheduler, in the rank's own thread only: there alone it is known who runs when."""
    clock: RankClock | None = None
    """As `endpoint`."""


here = _Here()
_host = os.getpid()


def follow_threads() -> None:
    """Threads that a rank starts work for that rank; a process that it forks is beyond the scheduler's reach."""
    begin()
    start = threading.Thread.start

    def start_for_rank(self: threading.Thread) -> None:
        rank = here.rank
        if rank is not None:
            run, adopt_exercises = self.run, exercises.hand_on()

            def run_for_rank() -> None:
                here.rank = rank
                adopt_exercises()
                run()

            self.run = run_for_rank  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_for_rank  # type: ignore[method-assign]
    os.register_at_fork(after_in_child=_leave_scheduler)


def begin() -> None:
    """This process is the one that has the scheduler, or is a rank: those that are forked from now on are beyond it."""
    global _host
    _host = os.getpid()


def _leave_scheduler() -> None:
    if here.endpoint is not None:
        here.endpoint.cut_off()
        here.endpoint = here.clock = None


def is_forked() -> bool:
    """Is this a process that a rank has forked?"""
    return os.getpid() != _host


def endpoint() -> Any:
    """The running rank's line to the scheduler. Raises RuntimeError where there is none."""
    if here.endpoint is None:
        raise RuntimeError("torch.distributed can be used in a rank's own thread only, not in one that it started")
    return here.endpoint
