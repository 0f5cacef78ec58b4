"""The rank of the running thread. A rank's state is found from here, so switching ranks costs nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit.clusters.virtual.endpoints.waits import running

if TYPE_CHECKING:
    import random

    import numpy

    from labkit.clusters.virtual.endpoints.endpoint import Endpoint
    from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
    from labkit.clusters.virtual.isolation.rank_clock import RankClock


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


def begin() -> None:
    """Mark this process as the scheduler's or a rank's: the scheduler cannot reach processes forked from now on."""
    global _host
    _host = os.getpid()


def forget() -> None:
    """End the connection of this thread to the scheduler."""
    here.endpoint = here.clock = running.thread = None


def leave_scheduler_at_fork() -> None:
    """Disable the rank's connection in processes that it forks, which the scheduler cannot reach."""
    os.register_at_fork(after_in_child=_leave_scheduler)


def _leave_scheduler() -> None:
    if here.endpoint is not None:
        here.endpoint.cut_off()
        forget()


def is_forked() -> bool:
    """Whether a rank has forked this process."""
    return os.getpid() != _host


def race_detector() -> RaceDetector | None:
    """The running rank's table of operations that it has not waited for; None on a thread that belongs to no rank."""
    return None if here.endpoint is None else here.endpoint.race_detector


def endpoint() -> Any:
    """The running rank's connection to the scheduler. Raises RuntimeError if there is none."""
    if here.endpoint is None:
        raise RuntimeError("torch.distributed can be used in threads of a rank only, started by threading.Thread")
    return here.endpoint
