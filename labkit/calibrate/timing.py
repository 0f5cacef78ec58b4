"""Timing of a call on a rank, repeated to give a median and a spread."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer

from labkit.calibrate.machine import Machine


@dataclass(frozen=True)
class Sample:
    """Median time of one kind of work at one size."""

    what: str
    """Kind: `product`, `copy`, `launch`, `layer`, `pass`, `optimizer`, `all_reduce`, `all_gather`, ..."""
    label: str
    """Human-readable size: `n = 512`, `1 MB`."""
    size: float
    """FLOPs of a product, bytes read and written by a copy, parameters of an optimizer's step, otherwise bytes."""
    seconds: float
    spread: float
    """Interquartile range of the repetitions, as a share of the median."""
    dtype: str = ""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


READING_SECONDS = 1e-3
"""Length of a clock reading: shorter than a scheduler time slice. On a shared machine most readings then contain no
waiting for a time slice, and so neither does their median."""
LEAST_READINGS = 7


def timed(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Median and spread over readings that take about `seconds` in total; waits for the GPU's work.

    torch.utils.benchmark's timer synchronises and disables the garbage collector. A reading covers many calls if they
    are short; the first calls warm up and determine how many.
    """
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    once = min(timer.timeit(1).mean for _ in range(5))
    count, readings = covering(once, seconds)
    times = []
    for _ in range(readings):
        take_turn()
        times.append(timer.timeit(count).mean)
    return statistics.median(times), spread_of(times)


def take_turn() -> None:
    """Sleep before a reading: on a contended core, a process that has slept starts with a full time slice."""
    time.sleep(READING_SECONDS)


def covering(once: float, seconds: float) -> tuple[int, int]:
    """Return calls per reading and number of readings, for calls that take `once` seconds each."""
    count = max(1, round(READING_SECONDS / max(once, 1e-8)))
    return count, max(LEAST_READINGS, min(200, round(seconds / (count * max(once, 1e-8)))))


def spread_of(times: Sequence[float]) -> float:
    """Interquartile range as a share of the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def progress(text: str) -> None:
    """Report progress to the command, which reads rank 0's output."""
    print(text, flush=True)


def on_machine(machine: Machine) -> torch.device:
    """Initialize the process group and return this rank's device."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if machine.device == "cuda":
        torch.cuda.set_device(local)
        dist.init_process_group(machine.backend, device_id=torch.device("cuda", local))
        return torch.device("cuda", local)
    dist.init_process_group(machine.backend)
    return torch.device("cpu")
