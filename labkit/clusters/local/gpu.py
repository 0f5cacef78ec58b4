"""A rank's work on its GPU streams, marked with CUDA events so that nothing has to wait for the GPU.

The program computes on the GPU's default stream: from the end of one operation, or from the end of a wait, to the start
of the next operation on that stream. An asynchronous operation runs beside it; its exposed part is the time that the
default stream waits in `wait()`, or for an event of another stream, as with FSDP2. Single kernels are not seen: if the
program is too slow to keep the GPU busy, the gaps count as computing, except for `time.sleep`.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from labkit.clusters.local.gpu_times import GpuTimes, Mark

_POLL_SECONDS = 0.25
"""Maximum delay until the supervisor learns of the end of an operation that the program does not observe."""
_MOST_PENDING = 256
_LAST_WAIT_SECONDS = 1.0
"""An operation that is not over by then has lost its peer and never will be."""
_TRIES = 5

monotonic, sleep = time.monotonic, time.sleep


class Gpu:
    """One GPU of this rank; created for the first operation on it, after waiting until the GPU is idle."""

    def __init__(self, device: int, most: int) -> None:
        """`most`: maximum number of recorded operations and compute spans."""
        self._device = device
        self._default = torch.cuda.default_stream(device)
        self._beside: dict[str, Any] = {}
        """A stream for each process group, which only waits for the group's operations."""
        self._blocking = os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1"
        self.times = GpuTimes(*self._now_on_both_clocks(), most)
        self._mark_waits()
        threading.Thread(target=self._poll, name="labkit-gpu", daemon=True).start()

    def here(self) -> Any:
        """A mark on this thread's current stream."""
        mark = torch.cuda.Event(enable_timing=True)
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    def computes_here(self) -> bool:
        """Whether this thread's current stream is the one on which the program computes."""
        return bool(torch.cuda.current_stream(self._device) == self._default)

    def after(self, work: Any, group: str) -> Any:
        """A mark that is reached when `work` is done; None if only its `wait()` shows that."""
        if self._blocking:
            return None
        stream = self._beside.get(group)
        if stream is None:
            stream = self._beside[group] = torch.cuda.Stream(self._device)
        mark = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            work.wait()
            mark.record(stream)
        return mark

    @contextmanager
    def waiting(self, stream: Any = None) -> Iterator[None]:
        """Within the context, `stream`, by default this thread's current one, may have to wait."""
        if (stream or torch.cuda.current_stream(self._device)) != self._default:
            yield
            return
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def last(
        self, row: int, reached: Callable[[], None], start: Mark, end: Mark | None, asked: float, kept: Any
    ) -> None:
        """Record that the operation in `row` lasts from `start` to `end`; without an end it is over.

        `reached` is called when it is known to be over.
        """
        if end is None:
            reached()
            return
        self.times.operation(row, start, end, asked, reached, kept)
        if self.times.pending > _MOST_PENDING:
            self.times.poll()

    def pause(self) -> None:
        """Record that code of others may make the default stream wait from here to `resume`."""
        self.times.computing_ends(self._default.record_event(torch.cuda.Event(enable_timing=True)))

    def resume(self) -> None:
        mark = self._default.record_event(torch.cuda.Event(enable_timing=True))
        self.times.computing_begins(mark, monotonic())

    def start_over(self) -> None:
        """Forget finished pieces."""
        self.times.forget()
        self.resume()

    def spans(self) -> list[tuple[int, float, float]]:
        """All finished pieces, after a short wait for the rest: see `GpuTimes.spans`."""
        with suppress(RuntimeError):  # a failed GPU raises at every call
            self.times.computing_ends(self.here())
            deadline = monotonic() + _LAST_WAIT_SECONDS
            while self.times.poll() and monotonic() < deadline:
                sleep(0.001)
            self.times.anchor(*self._now_on_both_clocks())
        return self.times.spans()

    def _now_on_both_clocks(self) -> tuple[Mark, float]:
        """A mark and the time when it was reached, in seconds on the host's clock: the best of a few tries."""
        # a stream of its own, unaffected by hangs elsewhere
        stream = torch.cuda.Stream(self._device)
        best: tuple[float, Any, float] | None = None
        for _ in range(_TRIES):
            mark = torch.cuda.Event(enable_timing=True)
            before = monotonic()
            mark.record(stream)
            mark.synchronize()
            after = monotonic()
            if best is None or after - before < best[0]:
                best = after - before, mark, (before + after) / 2
        assert best is not None
        return best[1], best[2]

    def _mark_waits(self) -> None:
        """Do not count the time as computing when a stream is made to wait for an event."""
        wait = torch.cuda.Event.wait

        @functools.wraps(wait)
        def waits(event: Any, stream: Any = None) -> None:
            with self.waiting(stream):
                wait(event, stream)

        # called by Stream.wait_event and wait_stream
        torch.cuda.Event.wait = waits  # type: ignore[method-assign,assignment]  # the same signature, less typed

    def _poll(self) -> None:
        with suppress(RuntimeError):
            while True:
                sleep(_POLL_SECONDS)
                self.times.poll()
