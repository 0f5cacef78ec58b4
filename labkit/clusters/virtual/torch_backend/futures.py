"""Futures of work under way on virtual ranks. The rank itself completes them, when it waits for them.

No other thread can: one rank runs at a time, and the work of another rank's thread would count as that rank's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from labkit.clusters import program
from labkit.clusters.program import is_learners


class VirtualFuture(torch.futures.Future[Any]):
    """A future completed by `finish`, which waits for the operation and returns the result, or raises.

    Callbacks run in the rank's own thread, as soon as the rank learns that the result is there: in `wait()` or `done()`
    of this future, or of the one that it was chained to.
    """

    def __init__(self, finish: Callable[[], Any], is_ready: Callable[[], bool]) -> None:
        super().__init__()
        self._finish: Callable[[], Any] | None = finish
        self._is_ready = is_ready
        self._then: list[Callable[[VirtualFuture], None]] = []
        self._error: Exception | None = None

    def complete(self) -> None:
        """Wait for the result, set it, and run the callbacks. Does nothing the second time."""
        if self._finish is None:
            return
        finish, self._finish = self._finish, None
        try:
            self.set_result(finish())
        except Exception as error:
            self._error = error
            self.set_exception(error)
        for callback in self._then:
            callback(self)
        self._then.clear()

    def wait(self) -> Any:
        self.complete()
        return super().wait()

    def done(self) -> bool:
        if self._finish is not None and self._is_ready():
            self.complete()
        return self._finish is None

    def then(self, callback: Callable[[Any], Any]) -> VirtualFuture:
        def finish() -> Any:
            self.complete()
            if self._error is not None:
                raise self._error
            try:
                return callback(self)
            except Exception as error:  # like torch's message
                message = f"Got the following error when running the callback: {type(error).__name__}: {error}"
                raise RuntimeError(message) from error

        following = VirtualFuture(finish, self.done)
        self.add_done_callback(lambda _: following.complete())
        return following

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._finish is None:
            callback(self)
        else:
            self._then.append(callback)


def collect_all(futures: Sequence[Any]) -> VirtualFuture:
    """`torch.futures.collect_all`: a future of the list of these futures, complete when all are."""

    def finish() -> list[Any]:
        for future in futures:
            if isinstance(future, VirtualFuture):
                future.complete()
        return list(futures)

    return VirtualFuture(finish, lambda: all(future.done() for future in futures))


def wait_all(futures: Sequence[Any]) -> list[Any]:
    """`torch.futures.wait_all`: their results, or the first error."""
    return [future.wait() for future in collect_all(futures).wait()]


def called_from_the_program_itself() -> bool:
    """Whether the program itself calls `get_future()`, with no torch code above it that may pass the future to C++."""
    frame: FrameType | None = sys._getframe(2)
    if frame is None or "get_future" not in frame.f_code.co_names:
        return False
    while frame is not None and is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == program.__file__


def install() -> None:
    """Make `torch.futures.collect_all` and `wait_all` wait as a virtual rank does."""
    torch.futures.collect_all = collect_all
    torch.futures.wait_all = wait_all
