"""Fits latency and bandwidth to measured times: least squares of relative errors, no cost below 0.

A time is a sum of a few parts, each a known amount times an unknown cost: `seconds = latency + bytes x cost per byte`
(alpha-beta, Hockney 1994). Small and large sizes count alike, since every error is relative to its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class NoFit(ValueError):
    """The times contradict the fitted model, as on a busy machine; the message says what to try."""


@dataclass(frozen=True)
class Fit:
    """Fitted costs, and the error at each measured time."""

    costs: tuple[float, ...]
    errors: tuple[float, ...]
    """Fitted / measured - 1 for each time, in order."""

    @property
    def median_error(self) -> float:
        return float(np.median(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        return max(map(abs, self.errors))


def fit(amounts: Sequence[Sequence[float]], seconds: Sequence[float]) -> Fit:
    """Fit nonnegative costs such that `amounts` (rows: times, columns: parts) x costs is nearest to `seconds`.

    A column that would need a negative cost gets cost 0. Raises NoFit if there are fewer times than parts, or if a time
    is not above 0.
    """
    times = np.asarray(seconds, dtype=float)
    table: NDArray[np.float64] = np.asarray(amounts, dtype=float)
    if not len(times) or table.ndim != 2 or table.shape[0] != len(times) or table.shape[0] < table.shape[1]:
        raise NoFit(f"{len(times)} times are too few for {table.shape[-1]} costs")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise NoFit("a measured time is not above 0: the clock is too coarse for it; measure larger sizes")
    relative = table / times[:, None]
    # columns differ by many powers of ten: bytes and counts
    scales = np.maximum(np.abs(relative).max(axis=0), np.finfo(float).tiny)
    used = list(range(table.shape[1]))
    costs = np.zeros(table.shape[1])
    while used:
        solution, *_ = np.linalg.lstsq(relative[:, used] / scales[used], np.ones(len(times)), rcond=None)
        if (solution >= 0).all():
            costs[used] = solution / scales[used]
            break
        used.pop(int(np.argmin(solution)))
    errors = relative @ costs - 1
    return Fit(tuple(map(float, costs)), tuple(map(float, errors)))


def line(sizes: Sequence[float], seconds: Sequence[float], what: str) -> Fit:
    """Fit `seconds = costs[0] + costs[1] x size`. Raises NoFit if the time does not grow with the size."""
    fitted = fit([(1.0, size) for size in sizes], seconds)
    if fitted.costs[1] <= 0:
        raise NoFit(f"{what}: larger sizes took no longer than small ones; is the machine busy? run it again")
    return fitted
