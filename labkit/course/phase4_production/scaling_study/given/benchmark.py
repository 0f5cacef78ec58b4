"""Base of every benchmark: its options, known measurements, the points of its studies; and one measurement."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from labkit.clusters import device as devices
from labkit.clusters.virtual.isolation.current import here
from labkit.course.phase4_production.scaling_study.given.arguments import require_benchmark, require_ranks
from labkit.course.phase4_production.scaling_study.given.records import (
    MakeWorkload,
    Measurement,
    Origin,
    Scaling,
    ScalingPoint,
)


class Benchmark:
    """Base of `ScalabilityBenchmark`: its constructor.

    make_workload: makes a rank's training step for a number of samples and a group; None if all is in `recorded`.
    recorded: measurements, which are not made again. strategy: their name. steps: in a repeat, which gives one figure.
    warmup: steps before them that do not count. repeats: for the spread. device: of this rank. tokens_per_sample: for
    tokens per second. Raises ValueError.
    """

    def __init__(
        self,
        make_workload: MakeWorkload | None = None,
        *,
        recorded: Iterable[Measurement] = (),
        strategy: str = "",
        steps: int = 10,
        warmup: int = 3,
        repeats: int = 3,
        device: torch.device | str = "cpu",
        tokens_per_sample: int = 1,
    ) -> None:
        require_benchmark(make_workload, steps, warmup, repeats)
        self.make_workload, self.strategy, self.tokens_per_sample = make_workload, strategy, tokens_per_sample
        self.steps, self.warmup, self.repeats, self.device = steps, warmup, repeats, torch.device(device)
        self.recorded = {(entry.world_size, entry.batch_size): entry for entry in recorded}
        """Measurements by number of ranks and samples of each rank."""
        self.points: list[ScalingPoint] = []
        """Points of all studies; add those of other benchmarks to have them in the same report."""

    def time_steps(self, step: Callable[[], Any], group: ProcessGroup | None) -> list[float]:
        """Return seconds of a step, one figure for each repeat."""
        raise NotImplementedError

    def measure(self, world_size: int, batch_size: int) -> Measurement:
        """Return the measurement of the first `world_size` ranks with `batch_size` samples each.

        A recorded configuration is not measured again. All ranks call it, and have the same result; the others wait.
        """
        if (world_size, batch_size) not in self.recorded:
            require_ranks(world_size, self.make_workload)
            self.recorded[world_size, batch_size] = self._on_ranks(world_size, batch_size)
        return self.recorded[world_size, batch_size]

    def keep(
        self, scaling: Scaling, measured: Sequence[Measurement], efficiencies: Sequence[float]
    ) -> list[ScalingPoint]:
        """Add the points of a study to `points`, unless they are there already, and return them."""
        added = [ScalingPoint(scaling, *pair) for pair in zip(measured, efficiencies, strict=True)]
        self.points += [point for point in added if point not in self.points]
        return added

    def _on_ranks(self, world_size: int, batch_size: int) -> Measurement:
        assert self.make_workload is not None
        group = dist.new_group(range(world_size))
        figures = [0.0] * (2 * self.repeats + 1)
        if dist.get_rank() < world_size:
            workload = self.make_workload(batch_size, group)
            with suppress(OSError):  # a sandbox may not let a process reset its peak
                devices.reset_peak_memory_stats()
            step = self.time_steps(workload.step, group)
            memory = torch.tensor([float(devices.max_memory_allocated())], dtype=torch.float64, device=self.device)
            dist.all_reduce(memory, op=dist.ReduceOp.MAX, group=group)
            figures = [*step, *self.time_steps(workload.compute, group), *memory.tolist()]
            del workload
        shared = torch.tensor(figures, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        _free_memory()
        *times, memory_bytes = shared.tolist()
        return Measurement(
            origin_here(),
            self.strategy,
            world_size,
            batch_size,
            tuple(times[: self.repeats]),
            tuple(times[self.repeats :]),
            int(memory_bytes),
            self.tokens_per_sample,
        )


def _free_memory() -> None:
    """Free what only reference cycles hold, such as a model with hooks: the next measurement must not count it."""
    dist.barrier()
    # virtual ranks may share a process, where one collection is enough for all
    if origin_here() == "real" or dist.get_rank() == 0:
        gc.collect()
    dist.barrier()


def origin_here() -> Origin:
    """Return the origin of this rank's times."""
    return "real" if here.endpoint is None else "virtual"
