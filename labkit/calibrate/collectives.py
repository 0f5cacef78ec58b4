"""Timings over all ranks: library collectives and messages between two ranks, by size, and the cost of overlap."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.calibrate.machine import Machine
from labkit.calibrate.timing import Sample, covering, on_machine, progress, spread_of, take_turn

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)
QUICK_SIZES = (1 << 10, 1 << 17, 1 << 23)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send")


def steps(machine: Machine, quick: bool) -> int:
    """Number of samples that `measure` takes, for a progress bar."""
    return len(KINDS) * len(_sizes(machine, quick)) + 1


def measure(machine: Machine, quick: bool) -> list[dict[str, Any]]:
    """Take samples, as plain data, together with all other ranks.

    A time is the slowest rank's, a size is that of the whole tensor.
    """
    device = on_machine(machine)
    each = 0.03 if quick else 0.2
    samples = []
    for kind in KINDS:
        for size in _sizes(machine, quick):
            call, turns, nbytes = _call(kind, size, device)
            seconds, spread = _together(call, each, device)
            samples.append(Sample(kind, size_label(size), nbytes, seconds / turns, spread))
            progress(f"{kind}: {size_label(size)}")
    samples += _overlap(device, each)
    progress("overlap: an all-reduce beside products")
    return [sample.to_plain() for sample in samples]


def size_label(nbytes: float) -> str:
    """Format a size as `1 KB`, `4 MB`: powers of two, like the message sizes."""
    for unit, scale in (("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes:g} B"


def _call(kind: str, size: int, device: torch.device) -> tuple[Callable[[], object], int, int]:
    """Return the call to time, its number of consecutive messages, and their bytes: `size`, rounded so that ranks can
    share it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = torch.ones(max(1, size // 4 // ranks), device=device)
    whole = torch.ones(part.numel() * ranks, device=device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole), 1, whole.nbytes
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part), 1, whole.nbytes
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole), 1, whole.nbytes

    def there_and_back() -> None:
        if rank == 0:
            dist.send(whole, 1)
            dist.recv(whole, 1)
        elif rank == 1:
            dist.recv(whole, 0)
            dist.send(whole, 0)

    return there_and_back, 2, whole.nbytes


def _together(call: Callable[[], object], seconds: float, device: torch.device) -> tuple[float, float]:
    """Median and spread of a call's time on the slowest rank, over readings that take about `seconds` in total."""
    once = min(_slowest([_clocked(call, 1, device) for _ in range(5)], device))
    # all ranks must repeat equally often, so they decide by the slowest rank's time, which is known to all
    count, readings = covering(once, seconds)
    times = _slowest([_clocked(call, count, device) for _ in range(readings)], device)
    return statistics.median(times), spread_of(times)


def _clocked(call: Callable[[], object], count: int, device: torch.device) -> float:
    """Seconds per call, over `count` back-to-back calls."""
    take_turn()
    dist.barrier()
    _wait(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    _wait(device)
    return (time.perf_counter() - start) / count


def _slowest(times: Sequence[float], device: torch.device) -> list[float]:
    together = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(together, dist.ReduceOp.MAX)
    slowest: list[float] = together.tolist()
    return slowest


def _overlap(device: torch.device, seconds: float) -> list[Sample]:
    """Time an all-reduce, products that take about as long, and both at once."""
    values = torch.ones(1 << 20, device=device)
    left = torch.ones(256, 256, device=device)
    out = torch.empty_like(left)

    def reduce() -> None:
        dist.all_reduce(values)

    alone, _ = _together(reduce, seconds, device)
    product, _ = _together(lambda: torch.mm(left, left, out=out), seconds, device)
    count = max(1, round(alone / product))

    def compute() -> None:
        for _ in range(count):
            torch.mm(left, left, out=out)

    def both() -> None:
        work = dist.all_reduce(values, async_op=True)
        compute()
        work.wait()

    calls = (("overlap reduce", reduce), ("overlap compute", compute), ("overlap both", both))
    return [Sample(kind, "4 MB", values.nbytes, *_together(call, seconds, device)) for kind, call in calls]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _sizes(machine: Machine, quick: bool) -> list[int]:
    return [size for size in (QUICK_SIZES if quick else SIZES) if 8 * size <= machine.free_bytes]
