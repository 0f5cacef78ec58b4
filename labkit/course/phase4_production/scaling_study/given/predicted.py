"""Predicted measurements: a step's time and memory by the formulas of `labkit.predict`, marked "predict"."""

from __future__ import annotations

from dataclasses import replace

from labkit.course.phase4_production.scaling_study.given.records import Measurement
from labkit.hardware import Topology
from labkit.predict import Plan, predict
from labkit.predict.describe import Description


def predicted(
    model: Description, plan: Plan, clusters: list[Topology], batch_size: int, strategy: str = ""
) -> list[Measurement]:
    """Return the prediction for each cluster, all of whose GPUs are for data parallelism.

    plan: its options; batch, microbatch and data ranks follow. batch_size: samples of each GPU. Memory is what torch
    allocates, as it is measured on ranks, without what CUDA's and NCCL's own context takes.
    """
    measurements = []
    for cluster in clusters:
        gpus = cluster.world_size
        own = replace(plan, data=gpus, batch=gpus * batch_size, microbatch=batch_size)
        made = predict(model, own, cluster)
        exposed = made.seconds("communication")
        measurements.append(
            Measurement(
                "predict",
                strategy,
                gpus,
                batch_size,
                (made.step_seconds,),
                (made.step_seconds - exposed,),
                int(made.memory.total),
                made.model.units_per_sample,
                cluster.name,
                made.model.name,
            )
        )
    return measurements
