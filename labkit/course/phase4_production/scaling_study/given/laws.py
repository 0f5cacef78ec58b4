"""Fits of scaling laws to measured throughput, and what each says about the limit.

throughput(n) = rate * speedup(n): the rate of one GPU is fitted, too, so a study may begin with any number of them.
Errors are relative, so that the point of 1 GPU counts as much as that of 256.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.course.phase4_production.scaling_study.given.records import Measurement, ScalingPoint

MOST_GPUS = 1e5
"""Number of GPUs beyond which a limit does not count as one."""
NO_SHARE = 1e-9
"""Share below which a fitted one counts as 0: least squares come near a bound without reaching it."""
NO_LOSS = 0.99
"""Efficiency, at the most GPUs that were measured, from which on it counts as perfect."""

Law = Callable[..., float]
"""Speedup of a number of GPUs, the first argument; the others are shares from 0 to 1, which are fitted."""


@dataclass(frozen=True)
class Fit:
    """A law that was fitted to points."""

    law: str
    rate: float
    """Samples per second of one GPU."""
    parameters: dict[str, float]
    error: float
    """Root of the mean square of the relative errors."""
    limit: str = ""
    """Limit by this law as more GPUs are added, as a sentence."""


def fit_law(law: Law, gpus: Sequence[int], samples_per_second: Sequence[float]) -> Fit | None:
    """Fit a law's parameters by least squares (scipy, trust region); None unless there are more points than those."""
    from scipy.optimize import least_squares  # takes half a second

    names = list(inspect.signature(law).parameters)[1:]
    if len(gpus) <= len(names):
        return None
    measured = np.log(np.asarray(samples_per_second, dtype=float))
    first = samples_per_second[0] / gpus[0]

    def errors(values: Any) -> Any:
        rate, *shares = map(float, values)
        return np.log([max(rate * law(float(n), *shares), 1e-300) for n in gpus]) - measured

    begin = [first, *(1e-3 for _ in names)]
    bounds = [0.2 * first, *(0.0 for _ in names)], [5 * first, *(1.0 for _ in names)]
    fitted = least_squares(errors, begin, bounds=bounds, x_scale=begin, xtol=1e-12, ftol=1e-12, gtol=1e-12).x
    rate, *shares = (value if value > NO_SHARE else 0.0 for value in map(float, fitted))
    error = math.sqrt(float(np.mean(np.expm1(errors(fitted)) ** 2)))
    return Fit(law.__name__, rate, dict(zip(names, shares, strict=True)), error)


def fit_curves(
    points: Sequence[ScalingPoint],
    samples_per_second: Callable[[Measurement], float],
    amdahl: Law,
    gustafson: Law,
    usl: Law,
    most_useful_gpus: Callable[[float, float], float],
) -> list[tuple[str, Fit]]:
    """Fit to each curve the law of its kind of scaling and the universal one; return its name with each fit."""
    curves: dict[str, list[ScalingPoint]] = {}
    for point in points:
        curves.setdefault(curve_name(point), []).append(point)
    fits = []
    for name, own in curves.items():
        gpus = [point.measurement.world_size for point in own]
        rates = [samples_per_second(point.measurement) for point in own]
        for law in (amdahl if own[0].scaling == "strong" else gustafson, usl):
            fit = fit_law(law, gpus, rates)
            if fit is not None:
                fits.append((name, replace(fit, limit=_limit(fit, law, max(gpus), most_useful_gpus))))
    return fits


def curve_name(point: ScalingPoint) -> str:
    """Return the name of the curve that a point is on: points of one curve have one first point."""
    of = point.measurement
    batch = f"batch {of.batch_size if point.scaling == 'weak' else of.world_size * of.batch_size}"
    return ", ".join(filter(None, [of.model, of.strategy, of.cluster, f"{point.scaling}, {batch}", of.origin]))


def _limit(fit: Fit, speedup: Law, gpus: int, most_useful_gpus: Callable[[float, float], float]) -> str:
    """Return what the law says about more GPUs than `gpus`, the most that were measured, as a sentence."""
    efficiency = speedup(float(gpus), *fit.parameters.values()) / gpus
    if efficiency >= NO_LOSS:
        return f"No limit in sight: {efficiency:.1%} at {gpus} GPUs."
    if len(fit.parameters) == 2:
        contention, coherency = fit.parameters.values()
        most = most_useful_gpus(contention, coherency)
        if most < MOST_GPUS:
            return f"Limit: coherency, each GPU agrees with each; with more than {most:,.0f} GPUs all are slower."
        return f"Limit: contention, GPUs wait for one resource; {1 / contention:,.3g} times one GPU at most."
    (serial,) = fit.parameters.values()
    if fit.law == "amdahl":
        return f"Limit: {serial:.2%} of one GPU's time is not divided; {1 / serial:,.3g} times one GPU at most."
    return f"Limit: efficiency falls to {1 - serial:.1%} and no further."
