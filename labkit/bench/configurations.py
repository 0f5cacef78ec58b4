"""Configurations: the measurements of a benchmark, with their clusters, and one of them on its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from labkit.bench import comm_hooks
from labkit.bench.models import named
from labkit.bench.options import VARIANTS, ZERO, Precision
from labkit.clusters import Cluster, Job, Run
from labkit.clusters.local import local
from labkit.clusters.virtual import VirtualCluster
from labkit.course.phase4_production.scaling_study.given import Measurement, Origin, bus_bandwidths, predicted
from labkit.hardware import Topology
from labkit.predict import Plan


@dataclass(frozen=True)
class Timing:
    """Number of steps in a repeat, of warm-up steps, and of repeats."""

    steps: int
    warmup: int
    repeats: int


@dataclass(frozen=True)
class Configuration:
    """One measurement, made or still to be made."""

    origin: Origin
    strategy: str
    gpus: int
    batch_size: int
    """Samples per GPU and step."""

    def is_of(self, measurement: Measurement) -> bool:
        """Whether this is the measurement, apart from cluster and model."""
        of = measurement
        own = self.origin, self.strategy, self.gpus, self.batch_size
        return own == (of.origin, of.strategy, of.world_size, of.batch_size)

    def __str__(self) -> str:
        return f"{self.origin}: {self.strategy}, {self.gpus} GPU{'s' * (self.gpus > 1)}, batch {self.batch_size}"


@dataclass(frozen=True)
class Plans:
    """Subject of a benchmark: the model, and clusters of each size."""

    model: str
    sequence: int | None
    precision: Precision
    clusters: Mapping[int, Topology]
    """Virtual clusters by number of GPUs."""
    cluster_file: str
    """Name of the file that describes the clusters; empty if they are a preset's."""
    real: int
    """Number of real ranks that this machine has; 0: none is used."""
    device: str
    """Device of the real ranks: "cuda" or "cpu"."""
    timing: Timing
    modules: Mapping[str, str]
    """Text of the exercises' modules by full name."""

    def configurations(
        self, gpus: Sequence[int], strategies: Sequence[str], batch_sizes: Sequence[int], strong: bool
    ) -> Iterator[Configuration]:
        """Yield real ones where the ranks exist, virtual and predicted ones for all; none with unequal parts.

        Variants of strategies are for several ranks, a hierarchy for several nodes, and neither is predicted.
        """
        for strategy in strategies:
            for batch in batch_sizes:
                for count in gpus:
                    if (strong and batch % count) or (strategy in VARIANTS and count == 1):
                        continue
                    own = Configuration("virtual", strategy, count, batch // count if strong else batch)
                    # the GPUs of one node have no second level
                    if count <= self.real and strategy != "ddp+hierarchy":
                        yield replace(own, origin="real")
                    if strategy != "ddp+hierarchy" or self.clusters[count].nnodes > 1:
                        yield own
                    if strategy in ZERO:
                        yield replace(own, origin="predict")

    def cluster_name(self, configuration: Configuration) -> str:
        """Return the name of the cluster: the same for all numbers of GPUs."""
        if configuration.origin == "real":
            return f"this machine, {torch.cuda.get_device_name() if self.device == 'cuda' else 'CPU'}"
        if self.cluster_file:
            return self.cluster_file  # names in files are not always different
        cluster = self.clusters[configuration.gpus]
        return cluster.name if cluster.name != "custom" else cluster.gpu.name

    def model_name(self) -> str:
        tokens = "" if self.sequence is None else f", {self.sequence} tokens"
        return f"{self.model}{tokens}, {self.precision}"

    def is_measured_by(self, configuration: Configuration, measurement: Measurement) -> bool:
        """Whether this is the configuration's measurement, of this model, on this cluster, repeated often enough."""
        where = self.cluster_name(configuration), self.model_name()
        repeats = 1 if configuration.origin == "predict" else self.timing.repeats
        same = where == (measurement.cluster, measurement.model) and len(measurement.step_seconds) >= repeats
        return same and configuration.is_of(measurement)

    def measure(self, configuration: Configuration) -> Measurement | str:
        """Return the measurement, or the error of the ranks in a line."""
        of = configuration
        if of.origin == "predict":
            measurement = self._predict(of)
        else:
            run = self._run(of)
            if not run.ok:
                return _in_a_line(run)
            measurement = Measurement.from_plain(run.values[0])
        return replace(measurement, cluster=self.cluster_name(of), model=self.model_name())

    def _predict(self, of: Configuration) -> Measurement:
        model = named(self.model, self.sequence)
        # images are not `channels_last`, so tensor cores need their convolutions transposed
        plan = Plan(
            batch=1, zero=ZERO[of.strategy], precision=self.precision, attention="flash2", fusion="none", loss="eager",
            channels_last=self.precision == "fp32",
        )  # fmt: skip
        (measurement,) = predicted(model.description, plan, [self.clusters[of.gpus]], of.batch_size, of.strategy)
        return measurement

    def _run(self, of: Configuration) -> Run:
        cluster: Cluster
        if of.origin == "real":
            cluster, device = local(nproc_per_node=of.gpus), self.device
        else:
            cluster, device = VirtualCluster(self.clusters[of.gpus], fake=True), "cpu"
        work = (of.strategy, self.model, self.sequence, self.precision, of.batch_size, self.timing, device)
        return cluster.run(Job.calling(measured, *work, modules=self.modules, trace=False))


def measured(
    strategy: str,
    model: str,
    sequence: int | None,
    precision: Precision,
    batch_size: int,
    timing: Timing,
    device: str,
) -> dict[str, Any]:
    """On a rank: return the measurement of all ranks, as plain data."""
    from labkit.exercises import scaling_study

    dist.init_process_group()
    if device == "cuda":
        device = f"cuda:{torch.cuda.current_device()}"
        torch.set_default_device(device)
    # torch's defaults are TF32 for convolutions, float32 for products of matrices
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    of = named(model, sequence)
    training = comm_hooks.training if strategy in VARIANTS else scaling_study.training
    benchmark = scaling_study.ScalabilityBenchmark(
        training(strategy, of.make, of.loss),
        strategy=strategy,
        steps=timing.steps,
        warmup=timing.warmup,
        repeats=timing.repeats,
        device=device,
        tokens_per_sample=of.tokens_per_sample,
    )
    measurement: Measurement = benchmark.measure(dist.get_world_size(), batch_size)
    return replace(measurement, gb_per_s=bus_bandwidths(benchmark)).to_plain()


def _in_a_line(run: Run) -> str:
    first = run.first_failure
    if first is None or first.error is None:
        return run.diagnosis().splitlines()[0]
    return f"{first.error.type}: {first.error.message.splitlines()[0]}"
