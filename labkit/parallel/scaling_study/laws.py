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

from labkit.parallel.scaling_study.records import Measurement, ScalingPoint

MOST_GPUS = 1e5
"""A limit beyond it is none that anybody reaches."""
NO_SHARE = 1e-5
"""A share that is fitted to less is 0: least squares approach a bound without reaching it."""

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
    """What the law says about more GPUs."""


def fit_law(law: Law, gpus: Sequence[int], samples_per_second: Sequence[float]) -> Fit | None:
    """Fit a law's parameters by least squares (scipy's `curve_fit`, trust region); None with fewer points than those.

    Raises ValueError if the law gives no positive finite speedups.
    """
    from scipy.optimize import curve_fit

    names = list(inspect.signature(law).parameters)[1:]
    if len(gpus) <= len(names):
        return None
    numbers, measured = np.asarray(gpus, dtype=float), np.asarray(samples_per_second, dtype=float)

    def relative(at: Any, rate: float, *shares: float) -> Any:
        speedups = [rate * law(float(n), *shares) for n in at]
        return np.log(np.maximum(speedups, 1e-300))

    first = measured[0] / numbers[0]
    found, _ = curve_fit(
        relative,
        numbers,
        np.log(measured),
        p0=[first, *(1e-3 for _ in names)],
        bounds=([0.2 * first, *(0.0 for _ in names)], [5 * first, *(1.0 for _ in names)]),
        x_scale=[first, *(1e-3 for _ in names)],
        xtol=1e-12,
        ftol=1e-12,
    )
    rate, *shares = map(float, found)
    error = math.sqrt(float(np.mean((np.exp(relative(numbers, *found)) / measured - 1) ** 2)))
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
    found = []
    for name, own in curves.items():
        gpus = [point.measurement.world_size for point in own]
        rates = [samples_per_second(point.measurement) for point in own]
        for law in (amdahl if own[0].scaling == "strong" else gustafson, usl):
            fit = fit_law(law, gpus, rates)
            if fit is not None:
                found.append((name, replace(fit, limit=_limit(fit, most_useful_gpus))))
    return found


def curve_name(point: ScalingPoint) -> str:
    """Return the name of the curve that a point is on: points of one curve have one first point."""
    of = point.measurement
    batch = f"batch {of.batch_size if point.scaling == 'weak' else of.world_size * of.batch_size}"
    return ", ".join(filter(None, [of.model, of.strategy, of.cluster, f"{point.scaling}, {batch}", of.origin]))


def _limit(fit: Fit, most_useful_gpus: Callable[[float, float], float]) -> str:
    """Return what the law says about more GPUs, as a sentence."""
    if len(fit.parameters) == 2:
        contention, coherency = fit.parameters.values()
        most = most_useful_gpus(contention, coherency)
        if most < MOST_GPUS:
            return f"Limit: coherency, each GPU agrees with each; with more than {most:,.0f} GPUs all are slower."
        if contention > NO_SHARE:
            return f"Limit: contention, GPUs wait for one resource; {1 / contention:,.3g} times one GPU at most."
        return "No limit in sight."
    (serial,) = fit.parameters.values()
    if serial <= NO_SHARE:
        return "No limit in sight."
    if fit.law == "amdahl":
        return f"Limit: {serial:.2%} of one GPU's time is not divided; {1 / serial:,.3g} times one GPU at most."
    return f"Limit: efficiency falls to {1 - serial:.1%} and no further."
