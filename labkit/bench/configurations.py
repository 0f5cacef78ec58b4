"""Configurations: the measurements of a benchmark, with their clusters, and one of them on its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from labkit.bench.models import named, with_sequence
from labkit.clusters import Cluster, Job, Run
from labkit.clusters.local import local
from labkit.clusters.virtual import VirtualCluster
from labkit.course.phase4_production.scaling_study.given import Measurement, Origin, predicted
from labkit.hardware import Topology
from labkit.predict import Plan
from labkit.predict.describe import Convolutional
from labkit.predict.plan import Precision

Strategy = Literal["ddp", "fsdp"]
ZERO: dict[str, int] = {"ddp": 0, "fsdp": 3}
"""Strategies, with the ZeRO stage by which `labkit.predict` knows them."""


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
        """Yield real ones where the ranks exist, virtual and predicted ones for all; none with unequal parts."""
        for strategy in strategies:
            for batch in batch_sizes:
                for count in gpus:
                    if strong and batch % count:
                        continue
                    own = Configuration("virtual", strategy, count, batch // count if strong else batch)
                    if count <= self.real:
                        yield replace(own, origin="real")
                    yield own
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
        return self.model if self.sequence is None else f"{self.model}, {self.sequence} tokens"

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
        model = named(self.model)
        if self.sequence is not None:
            model = with_sequence(model, self.sequence)
        # torch computes convolutions in TF32, but products of matrices in float32, unless set otherwise
        precision: Precision = "tf32" if isinstance(model.description, Convolutional) else "fp32"
        plan = Plan(
            batch=1, zero=ZERO[of.strategy], precision=precision, attention="flash2", fusion="none", loss="eager"
        )
        (measurement,) = predicted(model.description, plan, [self.clusters[of.gpus]], of.batch_size, of.strategy)
        return measurement

    def _run(self, of: Configuration) -> Run:
        cluster: Cluster
        if of.origin == "real":
            cluster, device = local(nproc_per_node=of.gpus), self.device
        else:
            cluster, device = VirtualCluster(self.clusters[of.gpus], fake=True), "cpu"
        work = (of.strategy, self.model, self.sequence, of.batch_size, self.timing, device)
        return cluster.run(Job.calling(measured, *work, modules=self.modules, trace=False))


def measured(
    strategy: str, model: str, sequence: int | None, batch_size: int, timing: Timing, device: str
) -> dict[str, Any]:
    """On a rank: return the measurement of all ranks, as plain data."""
    from labkit.exercises import scaling_study

    dist.init_process_group()
    if device == "cuda":
        device = f"cuda:{torch.cuda.current_device()}"
        torch.set_default_device(device)
    of = named(model)
    if sequence is not None:
        of = with_sequence(of, sequence)
    benchmark = scaling_study.ScalabilityBenchmark(
        scaling_study.training(strategy, of.make, of.loss),
        strategy=strategy,
        steps=timing.steps,
        warmup=timing.warmup,
        repeats=timing.repeats,
        device=device,
        tokens_per_sample=of.tokens_per_sample,
    )
    measurement: Measurement = benchmark.measure(dist.get_world_size(), batch_size)
    return measurement.to_plain()


def _in_a_line(run: Run) -> str:
    first = run.first_failure
    if first is None or first.error is None:
        return run.diagnosis().splitlines()[0]
    return f"{first.error.type}: {first.error.message.splitlines()[0]}"
