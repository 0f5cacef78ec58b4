"""Times of communication by operation: what this rank waits in each call of torch.distributed.

A call that communicates at once counts from its beginning to its end; one that returns a `Work` counts the call and its
`wait()`, not the time in which the rank computes meanwhile: exposed communication. What is not seen: calls in C++, as
of torch's own DDP, and code that waits for a `Work`'s future.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from labkit.torch_versions.groups import DelegatingWork, default_group, is_coalescing, replace_function

_OPERATIONS = {
    "all_reduce": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "batch_isend_irecv": "send_recv",
}
"""Functions of torch.distributed, some of them not in each version of torch, with their operations."""


class _Here(threading.local):
    is_inside = False
    """Whether this thread is within a timed call: one operation may call another."""


_here = _Here()
_timers: dict[Any, OperationTimer] = {}
"""Timers by the default group of their rank: virtual ranks share a process."""


class OperationTimer:
    """Times this rank's calls of torch.distributed, from now to `close`. mark: returns a moment on the rank's clock.

    waited: is called with the beginning and the end of each wait. Without a process group nothing is timed.
    """

    def __init__(self, mark: Callable[[], Any], waited: Callable[[Any, Any], None]) -> None:
        self._mark, self._waited = mark, waited
        self._group = default_group()
        self._calls: list[tuple[str, list[tuple[Any, Any]]]] = []
        if self._group is not None:
            _install()
            _timers[self._group] = self

    def take(self) -> list[tuple[str, list[tuple[Any, Any]]]]:
        """Return the calls since the last time: each an operation with the beginning and the end of its waits."""
        calls, self._calls = self._calls, []
        return calls

    def call(self, operation: str, function: Callable[..., Any], args: Any, options: Any) -> Any:
        """Call the function, and time it. What it returns to be waited for is timed, too."""
        waits: list[tuple[Any, Any]] = []
        self._calls.append((operation, waits))
        with self._waiting(waits):
            result = function(*args, **options)
        if isinstance(result, list):  # batch_isend_irecv
            return [self._timed(each, waits) for each in result]
        return self._timed(result, waits)

    def _timed(self, result: Any, waits: list[tuple[Any, Any]]) -> Any:
        return _TimedWork(result, partial(self._waiting, waits)) if isinstance(result, dist.Work) else result

    @contextmanager
    def _waiting(self, waits: list[tuple[Any, Any]]) -> Iterator[None]:
        if _here.is_inside:
            yield
            return
        _here.is_inside, began = True, self._mark()
        try:
            yield
        finally:
            _here.is_inside, ended = False, self._mark()
            waits.append((began, ended))
            self._waited(began, ended)

    def close(self) -> None:
        """Time no more calls."""
        if _timers.get(self._group) is self:
            del _timers[self._group]


class _TimedWork(DelegatingWork):
    """A `Work` whose `wait()` is timed."""

    def __init__(self, real: Any, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(real)
        self._waiting = waiting

    def wait(self, *timeout: Any) -> bool:
        with self._waiting():
            return super().wait(*timeout)


@functools.cache
def _install() -> None:
    """Replace the functions for good: without a timer they are the original ones."""
    for name, operation in _OPERATIONS.items():
        if hasattr(dist, name):
            replace_function(name, _through_timer(operation, getattr(dist, name)))


def _is_capturing() -> bool:
    """Whether calls in this thread are captured in a CUDA graph, in which no moment is marked."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _through_timer(operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        timer = _timers.get(default_group()) if _timers else None
        if timer is None or _here.is_inside or is_coalescing() or _is_capturing():
            return function(*args, **options)
        return timer.call(operation, function, args, options)

    return call
