"""Right: one loop with a mark around each repeat, all ranks' times gathered, throughputs compared, other formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.phase4_production.scaling_study import given
from labkit.course.phase4_production.scaling_study.given import Cost, Fit, Measurement, ScalingPoint, Workload
from labkit.exercises import ddp, zero

__all__ = ["ScalabilityBenchmark", "amdahl", "gustafson", "most_useful_gpus", "training", "usl"]

STRATEGIES = {"ddp": ddp.DistributedDataParallel, "fsdp": zero.FullyShardedDataParallel}


def training(
    strategy: str, make_model: Callable[[], nn.Module], make_loss: Callable[[nn.Module, int], Tensor]
) -> given.MakeWorkload:
    """Return a function that makes a workload: steps of `make_model()` by exercise 11's DDP or 15's FSDP, with AdamW.

    make_loss: returns the loss of a model for a number of samples. The step without communication is that of the bare
    model, with all of its states. Raises ValueError for another strategy.
    """
    given.check_strategy(strategy, STRATEGIES)

    def make(batch_size: int, group: ProcessGroup | None) -> Workload:
        wrapped = STRATEGIES[strategy](make_model(), group)
        step = given.optimizer_step(wrapped, lambda: make_loss(wrapped, batch_size))
        return Workload(step, given.made_at_first_call(make_model, lambda model: make_loss(model, batch_size)))

    return make


class ScalabilityBenchmark(given.Benchmark):
    """Measures training steps on the first 1, 2, 4, ... of the ranks, all of which call the same methods.

    `given.Benchmark` has the constructor and `measure(world_size, batch_size)`, whose batch is that of each rank. It
    makes a workload, and calls `time_steps` for its step and for the same step without communication.
    """

    def time_steps(self, step: Callable[[], Any], group: ProcessGroup | None) -> list[float]:
        """Return the seconds of a step, one figure for each of `repeats`: the slowest rank's, the same on all ranks.

        First `warmup` steps that do not count: they allocate, compile and connect. A repeat is `steps` steps, which all
        ranks of the group begin together, and nothing else is sent within it. One all-reduce for all repeats.
        """
        total, own = self.warmup + self.repeats * self.steps, []
        for number in range(total):
            if number >= self.warmup and (number - self.warmup) % self.steps == 0:
                dist.all_reduce(torch.zeros(1, device=self.device), group=group)
                own.append(-given.now(self.device))
            step()
            if number >= self.warmup and (number + 1 - self.warmup) % self.steps == 0:
                own[-1] += given.now(self.device)
        table = [
            torch.zeros(len(own), dtype=torch.float64, device=self.device) for _ in range(dist.get_world_size(group))
        ]
        dist.all_gather(table, torch.tensor(own, dtype=torch.float64, device=self.device), group=group)
        return [max(column) / self.steps for column in zip(*(row.tolist() for row in table), strict=True)]

    def weak_scaling(self, world_sizes: Sequence[int], batch_size: int) -> list[ScalingPoint]:
        """Measure with `batch_size` samples of each rank, and keep the points.

        Efficiency: throughput per GPU, compared with the first of `world_sizes`. Raises ValueError.
        """
        given.check_study(world_sizes, batch_size)
        measured = [self.measure(world_size, batch_size) for world_size in world_sizes]
        rates = [self.samples_per_second(one) / one.world_size for one in measured]
        efficiencies = [rate / rates[0] for rate in rates]
        return self.keep("weak", measured, efficiencies)

    def strong_scaling(self, world_sizes: Sequence[int], global_batch_size: int) -> list[ScalingPoint]:
        """Measure with `global_batch_size` samples of all ranks together, and keep the points.

        Efficiency: as above; the first of `world_sizes` may be 8. Raises ValueError if ranks get unequal parts.
        """
        given.check_global_batch(world_sizes, global_batch_size)
        measured = [self.measure(world_size, global_batch_size // world_size) for world_size in world_sizes]
        first, efficiencies = measured[0], []
        for one in measured:
            speedup = first.seconds / one.seconds
            efficiencies.append(speedup * first.world_size / one.world_size)
        return self.keep("strong", measured, efficiencies)

    def samples_per_second(self, measurement: Measurement) -> float:
        """Return the throughput of all ranks together."""
        return measurement.world_size * measurement.batch_size / measurement.seconds

    def communication_to_computation_ratio(self, measurement: Measurement) -> float:
        """Return exposed communication over computing: what the step takes longer than the same step without it.

        Communication that is hidden behind computing costs nothing. Not below 0, whatever the clock's noise.
        """
        exposed = measurement.seconds - measurement.computing
        return exposed / measurement.computing if exposed > 0 else 0.0

    def cost_per_epoch(self, measurement: Measurement, num_samples: int, dollars_per_gpu_hour: float) -> Cost:
        """Return steps, hours, GPU hours and dollars of `num_samples` samples. The last step may have fewer of them,
        and takes as long. Raises ValueError."""
        given.check_epoch(num_samples, dollars_per_gpu_hour)
        batch = measurement.world_size * measurement.batch_size
        steps = num_samples // batch + (num_samples % batch > 0)
        gpu_hours = steps * measurement.seconds * measurement.world_size / 3600
        return Cost(steps, gpu_hours / measurement.world_size, gpu_hours, dollars_per_gpu_hour * gpu_hours)

    def fits(self) -> list[tuple[str, Fit]]:
        """Return the laws that fit each curve: Amdahl's for strong scaling, Gustafson's for weak, the universal one for
        both; each needs a point more than it has parameters."""
        return given.fit_curves(self.points, self.samples_per_second, amdahl, gustafson, usl, most_useful_gpus)

    def report(self, format: str = "markdown") -> str:
        """Return the points of all studies as "markdown", "html", "json" or "csv". Raises ValueError."""
        given.check_format(format, given.FORMATS)
        rows = [
            given.Row(point, self.samples_per_second(of), self.communication_to_computation_ratio(of))
            for point in self.points
            for of in [point.measurement]
        ]
        return given.report(rows, self.fits(), format)


def amdahl(gpus: float, serial: float) -> float:
    """Return the speedup of a fixed amount of work, whose share `serial` of one GPU's time is not divided."""
    return gpus / (1 + serial * (gpus - 1))


def gustafson(gpus: float, serial: float) -> float:
    """Return the speedup of work that grows with the GPUs; `serial` is the share of the time, on all of them, of what
    does not grow."""
    return gpus - serial * (gpus - 1)


def usl(gpus: float, contention: float, coherency: float) -> float:
    """Return n / (1 + contention (n - 1) + coherency n (n - 1)): GPUs wait in a queue, and each agrees with each."""
    waiting, agreeing = contention * (gpus - 1), coherency * gpus * (gpus - 1)
    return gpus / (1 + waiting + agreeing)


def most_useful_gpus(contention: float, coherency: float) -> float:
    """Return the number of GPUs at which `usl` is largest: with more, all together are slower. Infinite if it grows
    without end. Where is the derivative 0? At least 1."""
    if coherency == 0:
        return float("inf")
    best = ((1 - contention) / coherency) ** 0.5
    return best if best > 1 else 1.0
