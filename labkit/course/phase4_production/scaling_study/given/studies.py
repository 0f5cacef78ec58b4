"""Studies of recorded measurements: those that differ in the number of GPUs alone are one curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.course.phase4_production.scaling_study.given.records import Measurement, Scaling


def studies(make_benchmark: Callable[..., Any], measured: Sequence[Measurement], scaling: Scaling) -> Any:
    """Return a benchmark with the points of all curves among the measurements.

    make_benchmark: `ScalabilityBenchmark`, the learner's. scaling: "weak", curves have one batch for each GPU;
    "strong", they have one batch together.
    """
    whole = make_benchmark()
    curves: dict[tuple[Any, ...], list[Measurement]] = {}
    for point in measured:
        batch = point.batch_size if scaling == "weak" else point.batch_size * point.world_size
        curves.setdefault((batch, point.model, point.cluster, point.strategy, point.origin), []).append(point)
    for (batch, *_), own in curves.items():
        benchmark = make_benchmark(recorded=own)
        study = benchmark.weak_scaling if scaling == "weak" else benchmark.strong_scaling
        study(sorted({point.world_size for point in own}), batch)
        whole.points += benchmark.points
    return whole
