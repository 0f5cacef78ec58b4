"""`time.sleep`, `time.time`, `time.perf_counter` and `time.monotonic` on a rank's thread: its virtual clock.

The standard library's own calls get the real clock, for they wait for real events; except for those of `threading`,
`queue` and `concurrent.futures`, which wait for threads of the rank.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import queue
import sys
import sysconfig
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import torch

from labkit.catalogue import code_folders
from labkit.clusters.virtual.isolation.current import here

_FUTURES = str(Path(concurrent.futures.__file__).parent)
_began = 0


def begin() -> None:
    """Set the real time that the ranks' clocks show at virtual time 0."""
    global _began
    # whole seconds: adding the clock to them rounds the same way in every run
    _began = int(time.time())


def separate() -> None:
    """Make the functions of `time` return the virtual clock on a rank's thread."""
    begin()
    nanoseconds = 10**9
    _replace("time", lambda clock: _began + clock)
    _replace("time_ns", lambda clock: _began * nanoseconds + int(clock * nanoseconds))
    for name in ("monotonic", "perf_counter"):
        _replace(name, lambda clock: clock)
        _replace(f"{name}_ns", lambda clock: int(clock * nanoseconds))
    real_sleep = time.sleep

    @functools.wraps(real_sleep)
    def sleep(seconds: float, /) -> None:
        clock = here.clock
        if clock is None or not 0 <= seconds < math.inf or _caller(sys._getframe(1).f_code.co_filename) == "real":
            real_sleep(seconds)
        else:
            clock.sleep(float(seconds))

    time.sleep = sleep  # type: ignore[assignment]  # positional only, as the real one is
    # timeit took its timer from `time` when it was imported
    measured = timeit.default_timer
    timeit.default_timer = time.perf_counter
    for function in (timeit.Timer.__init__, timeit.timeit, timeit.repeat):
        defaults = function.__defaults__ or ()
        function.__defaults__ = tuple(time.perf_counter if d is measured else d for d in defaults)


def _replace(name: str, shown: Callable[[float], Any]) -> None:
    real = getattr(time, name)

    @functools.wraps(real)
    def read() -> Any:
        clock = here.clock
        if clock is None:
            return real()
        kind = _caller(sys._getframe(1).f_code.co_filename)
        if kind == "real":
            return real()
        return shown(clock.read() if kind == "charged" else clock.look())

    setattr(time, name, read)


@functools.cache
def _caller(filename: str) -> str:
    """Whose code reads the clock: torch's, labkit's, threading's (free), other of the library (real), or any other."""
    if filename == timeit.__file__:
        return "charged"
    if filename.startswith((*map(str, code_folders()), str(Path(torch.__file__).parent))):
        return "free"
    if filename in (threading.__file__, queue.__file__) or filename.startswith(_FUTURES):
        return "free"
    packages = {"site-packages", "dist-packages"} & {*PurePath(filename).parts}
    if filename.startswith("<frozen") or (filename.startswith(sysconfig.get_path("stdlib")) and not packages):
        return "real"
    return "charged"
