"""Cost of a whole run: hours and dollars, checkpoints and failures, stragglers, efficiency as GPUs are added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.hardware import Topology
from labkit.predict.constants import FITTED, Constants
from labkit.predict.costs.state_bytes import state_bytes
from labkit.predict.describe import Description
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction
from labkit.predict.step import predict

FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""Unexpected interruptions of Llama 3's pre-training: 419 in 54 days on 16,384 H100s (arXiv 2407.21783, section
3.3.4)."""
RESTART_SECONDS = 25 * 60.0
"""Time to find a failure and its cause, under 10 minutes, and to catch up, 15 (MegaScale, arXiv 2402.15627, section
6.3)."""


@dataclass(frozen=True)
class Run:
    """A run of many steps without failures."""

    steps: int
    hours: float
    gpu_hours: float
    dollars: float


def run(prediction: Prediction, samples: float, dollars_per_gpu_hour: float) -> Run:
    """An epoch, or any number of samples, in whole steps; the price is per GPU and hour.

    Raises ValueError for negative or non-finite numbers.
    """
    if not (0 < samples < math.inf and 0 <= dollars_per_gpu_hour < math.inf):
        raise ValueError(f"samples must be above 0 and a price at least 0, got {samples} and {dollars_per_gpu_hour}")
    steps = math.ceil(samples / prediction.plan.batch)
    hours = steps * prediction.step_seconds / 3600
    return Run(steps, hours, hours * prediction.plan.ranks, hours * prediction.plan.ranks * dollars_per_gpu_hour)


@dataclass(frozen=True)
class Goodput:
    """Share of the time spent on steps that are not lost to failures."""

    share: float
    checkpoint_every_seconds: float
    checkpoint_seconds: float
    failures_per_day: float


def checkpoint_interval(checkpoint_seconds: float, between_failures: float) -> float:
    """Optimal seconds of work between two checkpoints (Daly 2006, equation 37; its first term is Young's 1974).

    sqrt(2 C M) (1 + sqrt(C/2M)/3 + C/18M) - C, for C below 2M; else M.
    """
    cost, mean = checkpoint_seconds, between_failures
    if cost <= 0 or mean <= 0:
        raise ValueError(f"both times must be above 0, got {cost} and {mean}")
    if cost >= 2 * mean:
        return mean
    part = cost / (2 * mean)
    return math.sqrt(2 * cost * mean) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def goodput(
    prediction: Prediction,
    *,
    failures_per_gpu_hour: float = FAILURES_PER_GPU_HOUR,
    restart_seconds: float = RESTART_SECONDS,
    checkpoint_seconds: float | None = None,
) -> Goodput:
    """Goodput with checkpoints at Daly's interval and random failures (Daly 2006, equation 20), each of which loses the
    work since the last checkpoint.

    `checkpoint_seconds`: time that training stops for a checkpoint; None: time to write parameters and Adam's state,
    without replicas, by all nodes at once to their storage (as torch.distributed.checkpoint does).
    """
    if not (0 < failures_per_gpu_hour < math.inf and 0 <= restart_seconds < math.inf):
        raise ValueError(
            "failures_per_gpu_hour must be above 0 and restart_seconds at least 0, "
            f"got {failures_per_gpu_hour} and {restart_seconds}"
        )
    if checkpoint_seconds is None:
        states = prediction.model.parameters * state_bytes(prediction.plan).saved / prediction.cluster.nnodes
        checkpoint_seconds = prediction.cluster.storage.write_seconds(states)
    if not 0 < checkpoint_seconds < math.inf:
        raise ValueError(f"checkpoint_seconds must be above 0, got {checkpoint_seconds}")
    mean = 3600 / (failures_per_gpu_hour * prediction.plan.ranks)
    every = max(prediction.step_seconds, checkpoint_interval(checkpoint_seconds, mean))
    exponent = (every + checkpoint_seconds) / mean
    lost = mean * math.exp(min(700.0, restart_seconds / mean)) * math.expm1(min(700.0, exponent))
    return Goodput(every / lost, every, checkpoint_seconds, 86_400 / mean)


def with_stragglers(prediction: Prediction, spread: float) -> float:
    """Seconds of a step whose computing time varies between ranks with a standard deviation of `spread` (a share).

    All wait for the slowest of n: about sqrt(2 ln n) deviations above the mean (extreme values of a normal
    distribution).
    """
    if not 0 <= spread < math.inf:
        raise ValueError(f"spread must be at least 0, got {spread}")
    n = prediction.plan.ranks
    late = spread * math.sqrt(2 * math.log(n)) if n > 1 else 0.0
    return prediction.step_seconds + late * prediction.seconds("compute")


@dataclass(frozen=True)
class ScalingPoint:
    """One point of a scaling study; efficiency 1: as efficient per GPU as the first point."""

    gpus: int
    step_seconds: float
    samples_per_second: float
    efficiency: float
    communication_share: float
    """Share of the step that is exposed communication."""
    ratio: float
    """Exposed communication / computing."""
    fits: bool
    """Whether a rank's memory suffices."""
    microbatch: int
    """Samples per forward pass of a rank."""


def scaling(
    model: Description,
    plan: Plan,
    cluster: Topology,
    nodes: Sequence[int],
    *,
    weak: bool,
    constants: Constants = FITTED,
) -> list[ScalingPoint]:
    """Efficiency as nodes are added, all of them for data parallelism.

    Weak: the batch grows with the ranks. Strong (Amdahl): the batch is fixed, and microbatches become fewer, then
    smaller. Raises ValueError if a number of nodes does not suit the plan.
    """
    return scaling_over(
        model, plan, [replace(cluster, nnodes=count) for count in nodes], weak=weak, constants=constants
    )


def scaling_over(
    model: Description,
    plan: Plan,
    clusters: Sequence[Topology],
    *,
    weak: bool,
    microbatches: Sequence[int] | None = None,
    constants: Constants = FITTED,
) -> list[ScalingPoint]:
    """Like `scaling`, from one cluster to the next, which may be parts of a node.

    microbatches: of each cluster; None: the plan's, or a rank's share of the batch if that is smaller.
    """
    points: list[ScalingPoint] = []
    for number, grown in enumerate(clusters):
        own = _grown(plan, grown, weak)
        if microbatches is not None:
            own = replace(own, microbatch=microbatches[number])
        made = predict(model, own, grown, constants=constants)
        rate = made.samples_per_second
        first = points[0] if points else None
        ideal = first.samples_per_second * grown.world_size / first.gpus if first else rate
        points.append(
            ScalingPoint(
                grown.world_size, made.step_seconds, rate, rate / ideal, made.communication_share,
                made.seconds("communication") / made.seconds("compute"), made.fits, own.microbatch,
            )
        )  # fmt: skip
    return points


def fastest_microbatches(
    model: Description, plan: Plan, clusters: Sequence[Topology], *, weak: bool, constants: Constants = FITTED
) -> list[int]:
    """Return the fastest microbatch that surely fits in memory, for each cluster of a scaling study.

    With weak scaling one for all, that of the first cluster on which any fits, so that GPUs compute alike. Where none
    fits it is 1. Raises ValueError if a number of GPUs does not suit the plan.
    """
    plans = [_grown(plan, grown, weak) for grown in clusters]
    chosen = (_fastest_microbatch(model, own, on, constants) for own, on in zip(plans, clusters, strict=True))
    if weak:
        return [next((micro for micro in chosen if micro is not None), 1)] * len(clusters)
    return [micro or 1 for micro in chosen]


def _fastest_microbatch(model: Description, plan: Plan, cluster: Topology, constants: Constants) -> int | None:
    share, fitting = plan.batch // plan.data, []
    for micro in (micro for micro in range(1, share + 1) if share % micro == 0):
        try:
            made = predict(model, replace(plan, microbatch=micro), cluster, constants=constants)
        except ValueError:  # its schedule does not admit so many or so few microbatches
            continue
        if made.surely_fits:
            fitting.append((made.step_seconds, micro))
    return min(fitting)[1] if fitting else None


def _grown(plan: Plan, cluster: Topology, weak: bool) -> Plan:
    """Return the plan on a cluster, all of whose further GPUs are for data parallelism. Raises ValueError."""
    data, remainder = divmod(cluster.world_size, plan.tensor * plan.pipeline * plan.context)
    if remainder or not data:
        raise ValueError(
            f"{cluster.world_size} GPUs are no multiple of tensor x pipeline x context = "
            f"{plan.tensor * plan.pipeline * plan.context}"
        )
    batch = plan.batch * data // plan.data if weak else plan.batch
    micro = plan.microbatch if weak else min(plan.microbatch, max(1, batch // data))
    return replace(plan, data=data, batch=batch, microbatch=micro)
