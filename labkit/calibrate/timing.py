"""How long something takes on a rank: repeated until it has a median and a spread."""

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
    """One thing at one size: the median over its repetitions."""

    what: str
    """`product`, `copy`, `launch`, `layer`, `pass`, `optimizer`, `all_reduce`, `all_gather`, ..."""
    label: str
    """Its size for people: `n = 512`, `1 MB`."""
    size: float
    """FLOPs of a product, bytes read and written of a copy, else bytes; parameters of an optimizer's step."""
    seconds: float
    spread: float
    """Between the quartiles of the repetitions, as a share of the median."""
    dtype: str = ""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


READING_SECONDS = 1e-3
"""Of the clock: shorter than a turn that the system gives a process. On a machine that others use too, most readings
then hold no waiting for a turn, and their median none."""
LEAST_READINGS = 7


def timed(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Median and spread over readings that take about `seconds` together; a GPU's work is waited for.

    torch.utils.benchmark's timer synchronises and keeps the garbage collector away. A reading covers many calls of what
    is short; the first ones warm up and tell how many.
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
    """Before a reading: whoever has slept begins a whole turn of the processor, if others want it too."""
    time.sleep(READING_SECONDS)


def covering(once: float, seconds: float) -> tuple[int, int]:
    """Calls that a reading covers, and how many readings to take, for calls of so many seconds."""
    count = max(1, round(READING_SECONDS / max(once, 1e-8)))
    return count, max(LEAST_READINGS, min(200, round(seconds / (count * max(once, 1e-8)))))


def spread_of(times: Sequence[float]) -> float:
    """Between the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def progress(text: str) -> None:
    """Tell the command what was done; it reads lines of rank 0."""
    print(text, flush=True)


def on_machine(machine: Machine) -> torch.device:
    """This rank's device, with the process group standing."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    if machine.device == "cuda":
        torch.cuda.set_device(local)
        dist.init_process_group(machine.backend, device_id=torch.device("cuda", local))
        return torch.device("cuda", local)
    dist.init_process_group(machine.backend)
    return torch.device("cpu")
