"""Fits the physical constants to published training runs: the same constants for all models, layouts and tables.

Minimizes the logarithm of predicted / measured time, with equal weight per source and little weight for rows that are
far off (broken networks, repeated runs): soft L1 beyond a tenth. Needs scipy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from predict_rows import Row
from scipy.optimize import least_squares

from labkit.predict import COMPONENTS, Constants, predict_range


class Free(NamedTuple):
    """A constant to fit, within physical bounds."""

    name: str
    start: float
    """Value from benchmarks of parts, which a constant keeps if no row determines it."""
    low: float
    high: float
    scale: float = 1.0


FREE = (
    Free("sustained a100", 1.0, 0.6, 1.05),
    Free("sustained h100", 1.0, 0.5, 1.05),
    Free("passes_share", 1.0, 0.3, 1.05),
    Free("kernel_seconds", 3, 1, 12, 1e-6),
    Free("host_seconds", 20, 5, 80, 1e-6),
    Free("flash1 h100", 0.2, 0.1, 0.4),
    Free("lockstep_seconds", 0, 0, 600, 1e-6),
    Free("crossing_seconds", 0, 0, 2000, 1e-6),
)
FIXED = {"ramp_k": 64.0, "network_hops": 2.8}
"""Constants that the rows do not determine: a fit drives both to their bounds. They are the depth of one load of a
tile, and the 14 microseconds of NCCL's table over InfiniBand's 5."""
PULL = 0.05
"""Strength of the pull towards the start value: far too weak to matter if any row determines the constant."""
ROWS = 60
"""Maximum number of rows per source, evenly spaced: enough for so few constants."""


def constants(values: Sequence[float]) -> Constants:
    fitted = {free.name: value * free.scale for free, value in zip(FREE, values, strict=True)}
    tables = {
        "sustained": {
            "a100": fitted.pop("sustained a100"),
            "h100": (hopper := fitted.pop("sustained h100")),
            "h200": hopper,
        },
        "flash1": {**COMPONENTS.flash1, "h100": fitted.pop("flash1 h100")},
    }
    return replace(COMPONENTS, **FIXED, **fitted, **{name: MappingProxyType(table) for name, table in tables.items()})


def predicted(row: Row, chosen: Constants) -> float:
    return predict_range(row.model, row.plan, row.cluster, constants=chosen).step_seconds.middle


class Found(NamedTuple):
    """The value that a fit found for a constant, in the units of its `Free`."""

    value: float
    uncertainty: float
    """Standard deviation, from the curvature at the minimum."""
    remark: str
    """Reason not to trust the value; empty if there is no such reason."""


def fit(sources: Mapping[str, Sequence[Row]]) -> tuple[Constants, dict[str, Found]]:
    drawn = {name: fitted[:: max(1, math.ceil(len(fitted) / ROWS))] for name, fitted in sources.items()}

    def residuals(values: Sequence[float]) -> np.ndarray:
        chosen = constants(values)
        parts = []
        for fitted in drawn.values():
            errors = np.array([math.log(predicted(row, chosen) / row.seconds) for row in fitted]) / 0.1
            parts.append(np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1)) / math.sqrt(len(fitted)))
        pull = [PULL * (value - free.start) / (free.high - free.low) for value, free in zip(values, FREE, strict=True)]
        return np.concatenate([*parts, pull])

    bounds = ([free.low for free in FREE], [free.high for free in FREE])
    span = [free.high - free.low for free in FREE]
    best = least_squares(
        residuals, [free.start for free in FREE], bounds=bounds, x_scale=span, diff_step=1e-3, max_nfev=20
    )
    variance = 2 * best.cost / (len(best.fun) - len(FREE))
    deviations = np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)) * variance)
    fitted = {}
    for free, value, deviation in zip(FREE, map(float, best.x), map(float, deviations), strict=True):
        span = free.high - free.low
        at_bound = min(value - free.low, free.high - value) < 0.01 * span
        remark = "at a bound" if at_bound else "not determined" if deviation > span / 4 else ""
        fitted[free.name] = Found(value, deviation, remark)
    return constants(best.x), fitted
