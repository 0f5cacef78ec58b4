"""Exercise 23 on a rank, for its checks: steps that take known times, studies of them, and recorded measurements.

timed(plan, late, ...)            the learner's timing of steps
studied(kind, world_sizes, ...)   a study of steps on these ranks
computed(table, calls)            what the learner's benchmark makes of recorded measurements
fitted(kind, table, ...)          the laws that fit them, and reports
laws(calls)                       values of functions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.phase4_production.scaling_study.given import Measurement, Workload


def timed(
    plan: list[int],
    late: int,
    warm: list[int],
    counts: list[int],
    nelements: int,
    tick: Any,
    group: Any = None,
) -> list[float]:
    """On a rank: come late, then time steps: `warm` units of work in the first ones, then those of `plan` in turn.

    counts: steps, warm-up, repeats. nelements: of an all-reduce at the end of each step; 0: none.
    """
    from labkit.exercises import scaling_study

    calls = 0

    def step() -> None:
        nonlocal calls
        units = warm[calls] if calls < len(warm) else plan[(calls - len(warm)) % len(plan)]
        calls += 1
        for _ in range(units):
            tick()
        if nelements:
            dist.all_reduce(torch.zeros(nelements), group=group)

    steps, warmup, repeats = counts
    benchmark = scaling_study.ScalabilityBenchmark(steps=steps, warmup=warmup, repeats=repeats)
    for _ in range(late):
        tick()
    return [float(seconds) for seconds in benchmark.time_steps(step, group)]


def studied(
    kind: str,
    world_sizes: list[int],
    batch: int,
    counts: list[int],
    sample: Callable[[], Any],
    warm: Callable[[], Any],
    *,
    overhead: Callable[[], Any] | None = None,
    nelements: int = 0,
    methods: Sequence[str] = (),
) -> list[list[float]]:
    """On a rank: make a study of steps that work for each sample; return figures of each point.

    counts: steps, warm-up, repeats. warm: what each step of a rank's warm-up takes longer. overhead: what a step takes
    longer for each rank of the group. nelements: of an all-reduce at the end of each step; 0: none. methods: of the
    benchmark, whose values for the point's measurement come last.
    """
    from labkit.exercises import scaling_study

    steps, warmup, repeats = counts

    def make(batch_size: int, group: Any) -> Workload:
        calls = 0

        def compute() -> None:
            nonlocal calls
            calls += 1
            for _ in range(batch_size):
                sample()
            if calls <= warmup:
                warm()

        def step() -> None:
            compute()
            if overhead is not None:
                for _ in range(dist.get_world_size(group)):
                    overhead()
            if nelements:
                dist.all_reduce(torch.zeros(nelements), group=group)

        return Workload(step, compute)

    benchmark = scaling_study.ScalabilityBenchmark(make, steps=steps, warmup=warmup, repeats=repeats)
    points = getattr(benchmark, f"{kind}_scaling")(world_sizes, batch)
    found = []
    for point in points:
        of = point.measurement
        numbers = [of.world_size, of.batch_size, of.seconds, point.efficiency]
        numbers += [getattr(benchmark, method)(of) for method in methods]
        found.append([float(number) for number in numbers])
    return found


def computed(table: list[list[Any]], calls: list[list[Any]]) -> list[Any]:
    """On a rank: call methods of a benchmark about measurements: world size, samples, times of steps and computing."""
    from labkit.exercises import scaling_study

    measured = [Measurement("real", "ddp", n, batch, tuple(steps), tuple(alone)) for n, batch, steps, alone in table]
    benchmark = scaling_study.ScalabilityBenchmark(recorded=measured)
    found: list[Any] = []
    for name, *args in calls:
        if name.endswith("scaling"):
            found.append([float(point.efficiency) for point in getattr(benchmark, name)(*args)])
        else:
            number, *more = args
            value = getattr(benchmark, name)(measured[number], *more)
            found.append([float(one) for one in value] if isinstance(value, tuple) else float(value))
    return found


def laws(calls: list[list[Any]]) -> list[float]:
    """On a rank: return the values of functions of the module."""
    from labkit.exercises import scaling_study

    return [float(getattr(scaling_study, name)(*args)) for name, *args in calls]


def fitted(kind: str, table: list[list[Any]], batch: int, formats: list[str]) -> list[Any]:
    """On a rank: study measurements of each origin; return what fits the real ones, and reports of them all."""
    from labkit.exercises import scaling_study

    benchmark = scaling_study.ScalabilityBenchmark()
    for origin in ("real", "virtual", "predict"):
        measured = [Measurement(origin, "ddp", n, b, tuple(steps), tuple(alone)) for n, b, steps, alone in table]
        own = scaling_study.ScalabilityBenchmark(recorded=measured)
        getattr(own, f"{kind}_scaling")([n for n, *_ in table], batch)
        benchmark.points += own.points
    fits = [[fit.law, float(fit.rate), *map(float, fit.parameters.values()), fit.limit] for _, fit in benchmark.fits()]
    return [fits, *(benchmark.report(format) for format in formats)]
