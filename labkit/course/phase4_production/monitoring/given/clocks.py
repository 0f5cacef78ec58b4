"""Time and memory of this rank's device, read without making it wait."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

from labkit.clusters import device as devices


class Clock(Protocol):
    """Marks moments, and gives the seconds between two of them."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float: ...


class HostClock:
    """`time.perf_counter`: on virtual ranks it is the virtual clock."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class GpuClock:
    """Events in the current CUDA stream: the host does not wait at a mark, only where `seconds` are asked for."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a rank that computes on `device`."""
    return GpuClock() if device.type == "cuda" else HostClock()


def now(device: torch.device) -> float:
    """Return the time in seconds when all that is in the device's current stream is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return time.perf_counter()


def memory_allocated() -> int:
    """Return the bytes of this rank's tensors on its GPU; of its process, where it has none."""
    return devices.memory_allocated()
