"""A scaling study: how much of each added GPU becomes throughput, what the rest is spent on, and what that costs.

Two questions have two denominators. Weak scaling: each rank keeps its batch, so a step should take as long as before.
Strong scaling: all ranks together keep theirs, so a step should take 1/n of the time. Three laws say what limits it:
Amdahl 1967, Gustafson 1988, and the universal scalability law (Gunther 1993), in which too many GPUs are slower.
"""

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
        # TODO 1. `given.now(self.device)` is the time when the device is done with all before; `dist.barrier(group)`.
        # The figures travel in a tensor of float64 on `self.device`.
        # YOUR CODE HERE
        raise NotImplementedError()

    def weak_scaling(self, world_sizes: Sequence[int], batch_size: int) -> list[ScalingPoint]:
        """Measure with `batch_size` samples of each rank, and keep the points.

        Efficiency: throughput per GPU, compared with the first of `world_sizes`. Raises ValueError.
        """
        given.check_study(world_sizes, batch_size)
        # TODO 2. `self.measure(...)`; a measurement has `seconds` and `world_size`. The first one has efficiency 1.
        # YOUR CODE HERE
        raise NotImplementedError()
        return self.keep("weak", measured, efficiencies)

    def strong_scaling(self, world_sizes: Sequence[int], global_batch_size: int) -> list[ScalingPoint]:
        """Measure with `global_batch_size` samples of all ranks together, and keep the points.

        Efficiency: as above; the first of `world_sizes` may be 8. Raises ValueError if ranks get unequal parts.
        """
        given.check_global_batch(world_sizes, global_batch_size)
        # This belongs to TODO 2, too.
        # YOUR CODE HERE
        raise NotImplementedError()
        return self.keep("strong", measured, efficiencies)

    def samples_per_second(self, measurement: Measurement) -> float:
        """Return the throughput of all ranks together."""
        # TODO 3. This one, and the next two. `measurement.batch_size` is that of each rank.
        # YOUR CODE HERE
        raise NotImplementedError()

    def communication_to_computation_ratio(self, measurement: Measurement) -> float:
        """Return exposed communication over computing: what the step takes longer than the same step without it.

        Communication that is hidden behind computing costs nothing. Not below 0, whatever the clock's noise.
        """
        # `measurement.computing`: seconds of the step without communication.
        # YOUR CODE HERE
        raise NotImplementedError()

    def cost_per_epoch(self, measurement: Measurement, num_samples: int, dollars_per_gpu_hour: float) -> Cost:
        """Return steps, hours, GPU hours and dollars of `num_samples` samples. The last step may have fewer of them,
        and takes as long. Raises ValueError."""
        given.check_epoch(num_samples, dollars_per_gpu_hour)
        # YOUR CODE HERE
        raise NotImplementedError()

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
    # TODO 4. These four.
    # YOUR CODE HERE
    raise NotImplementedError()


def gustafson(gpus: float, serial: float) -> float:
    """Return the speedup of work that grows with the GPUs; `serial` is the share of the time, on all of them, of what
    does not grow."""
    # YOUR CODE HERE
    raise NotImplementedError()


def usl(gpus: float, contention: float, coherency: float) -> float:
    """Return n / (1 + contention (n - 1) + coherency n (n - 1)): GPUs wait in a queue, and each agrees with each."""
    # YOUR CODE HERE
    raise NotImplementedError()


def most_useful_gpus(contention: float, coherency: float) -> float:
    """Return the number of GPUs at which `usl` is largest: with more, all together are slower. Infinite if it grows
    without end. Where is the derivative 0? At least 1."""
    # YOUR CODE HERE
    raise NotImplementedError()
