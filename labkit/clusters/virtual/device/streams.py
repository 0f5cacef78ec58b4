"""Streams on virtual ranks: a collective on a stream of its own runs beside the rank's work.

torch has `torch.cpu.Stream`, `Event` and `stream` so that code written for GPUs runs on CPUs, where they do nothing. On
virtual ranks they keep time. A rank's clock is its default stream. Within `with torch.cpu.stream(side):` a collective
begins when everything that the side stream has waited for is done, which may be earlier than the rank's clock: a GPU's
host runs ahead of it and asked long ago. A blocking collective leaves the rank's clock unchanged and extends the side
stream until it is done; code that waits for the stream, or for an event recorded on it, waits until then. FSDP2
overlaps in this way. Operators within the block are still charged to the rank's own clock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch

from labkit.clusters.virtual.endpoints.endpoint import Endpoint, Moment
from labkit.clusters.virtual.isolation import current
from labkit.clusters.virtual.scheduler.requests import Request


class Stream:
    """Replaces `torch.cpu.Stream`: a side stream."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self._until: Moment = 0.0

    @property
    def until(self) -> Moment:
        """Time at which everything on it so far is done."""
        return self._until

    def last(self, time: Moment) -> None:
        """Let the next operation on it begin no earlier than `time`."""
        self._until = current.endpoint().later(self._until, time)

    def wait_stream(self, stream: Stream) -> None:
        self.last(stream.until)

    def wait_event(self, event: StreamEvent | None) -> None:
        if event is not None:
            self.last(event.time)

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        event = event or StreamEvent()
        event.time = self.until
        return event

    def query(self) -> bool:
        return _is_over(self.until)

    def synchronize(self) -> None:
        _default.last(self.until)


class _Default(Stream):
    """The running rank's own clock."""

    @property
    def until(self) -> Moment:
        present: Moment = current.endpoint().moment()
        return present

    def last(self, time: Moment) -> None:
        current.endpoint().sleep_until(time)


class StreamEvent:
    """Replaces `torch.cpu.Event`."""

    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self.time: Moment = 0.0

    def record(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).record_event(self)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return _is_over(self.time)

    def synchronize(self) -> None:
        _default.last(self.time)

    def elapsed_time(self, end: StreamEvent) -> float:
        """Milliseconds from this event to `end`."""
        seconds = current.endpoint().seconds
        return float((seconds(end.time) - seconds(self.time)) * 1e3)


def _is_over(moment: Moment) -> bool:
    endpoint = current.endpoint()
    return bool(endpoint.seconds(moment) <= endpoint.now)


class _Here(threading.local):
    side: Stream | None = None
    """Side stream that the running rank has selected."""


_here = _Here()
_default = _Default()


def current_stream(device: Any = None) -> Stream:
    """Replaces `torch.cpu.current_stream`."""
    return _here.side or _default


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    """Replaces `torch.cpu.stream`."""
    before = _here.side
    if chosen is not None:
        _here.side = None if chosen is _default else chosen
    try:
        yield
    finally:
        _here.side = before


def post(endpoint: Endpoint, request: Request) -> Any:
    """`endpoint.post` on the rank's selected stream: at the time when everything that stream has waited for is done."""
    side = _here.side
    return endpoint.post(request) if side is None else endpoint.post(request, side.until)


def wait(endpoint: Endpoint, handle: Any, move_clock: bool = True, timeout: float = inf) -> tuple[Any, int]:
    """`endpoint.wait` on the rank's selected stream."""
    side = _here.side
    if side is None or not move_clock:
        return endpoint.wait(handle, move_clock, timeout)
    arrived = endpoint.wait(handle, False, timeout)
    side.last(endpoint.done_at(handle))
    return arrived


def install() -> None:
    """Replace torch.cpu's streams and events with these, in this process."""
    replacements: dict[str, Any] = {
        "Stream": Stream,
        "Event": StreamEvent,
        "current_stream": current_stream,
        "stream": stream,
        "StreamContext": stream,
    }
    for name, replacement in replacements.items():
        setattr(torch.cpu, name, replacement)
