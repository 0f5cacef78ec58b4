"""Fits `SPREAD` of labkit.predict, the range of each part of a step, to published runs, and counts the runs inside.

The shares are those with the smallest sum of misses (quantile regression: Koenker & Bassett 1978), upper and lower ends
apart. A family is a source; nanotron's sweep, which alone has some kinds of parts, is one family a model. Needs scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from predict_fit import fit
from predict_rows import Row
from scipy.optimize import linprog

from labkit.predict import Constants, Range, predict_range
from labkit.predict.spread import SPREAD, Part, Spread, parts

QUANTILE = 0.97
"""Share of the rows that the fit wants below the upper end, and as many above the lower."""
MOST = 1.0
"""Largest share of a part, before it is widened: few rows have much traffic between nodes, and fit it to noise."""
WIDER = 1.2
"""Factor by which the shares are widened for new software: the smallest tenth with which `COVERAGE` of the rows of a
family are inside, in the mean over families, when constants and shares were fitted without it."""
BROKEN = 2.5
"""A run that takes so many times its prediction is not fitted; it counts as outside. Some pipelines of nanotron's sweep
take about a second a microbatch more than the same layout in other runs, whatever its size."""
SPLIT = "ultrascale_nanotron"
Spreads = Mapping[Part, Spread]


class Shares(NamedTuple):
    """Seconds of each part of a row's fastest and of its slowest case, in measured seconds."""

    fastest: np.ndarray
    slowest: np.ndarray


def families(found: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    made: dict[str, list[Row]] = {}
    for name, of in found.items():
        for row in of:
            made.setdefault(f"{name}, {row.model.name}" if name == SPLIT else name, []).append(row)
    return made


def shares(of: Sequence[Row], chosen: Constants) -> list[Shares]:
    found = []
    for row in of:
        cases = predict_range(row.model, row.plan, row.cluster, constants=chosen).cases
        ends = (pick(cases, key=lambda case: case.step_seconds) for pick in (min, max))
        found.append(
            Shares(*(np.array(list(parts(end.terms, end.plan, end.cluster).values())) / row.seconds for end in ends))
        )
    return found


def fit_spread(found: Mapping[str, Sequence[Shares]]) -> Spreads:
    """Return the spread of families' rows, each family with the weight of the square root of its rows."""
    fitted = {name: [row for row in of if row.slowest.sum() * BROKEN > 1] for name, of in found.items()}
    weights = np.array([1 / math.sqrt(len(of)) for of in fitted.values() for _ in of])
    rows = [row for of in fitted.values() for row in of]
    faster = _quantile(np.array([row.fastest for row in rows]), -1, weights)
    slower = _quantile(np.array([row.slowest for row in rows]), 1, weights)
    return {part: Spread(WIDER * low, WIDER * high) for part, low, high in zip(SPREAD, faster, slower, strict=True)}


def _quantile(rows: np.ndarray, side: int, weights: np.ndarray) -> list[float]:
    """Return shares u, at least 0, for which parts x (1 + side x u) is the end that holds `QUANTILE` of the rows."""
    total = rows.sum(axis=1)
    excess, count, width = side * (1 / total - 1), *rows.shape
    # excess = parts u + missed - spare
    cost = np.concatenate([np.zeros(width), QUANTILE * weights, (1 - QUANTILE) * weights])
    equal = np.hstack([rows / total[:, None], np.eye(count), -np.eye(count)])
    bounds = [(0.0, MOST)] * width + [(0.0, None)] * (2 * count)
    return [float(value) for value in linprog(cost, A_eq=equal, b_eq=excess, bounds=bounds).x[:width]]


def ends(row: Shares, spread: Spreads) -> Range:
    """Return the range of a row, in measured seconds: the measurement is inside if 1 is."""
    faster, slower = np.array(list(spread.values())).T
    return Range(float(row.fastest @ (1 - faster)), float(row.slowest @ (1 + slower)))


class Coverage(NamedTuple):
    """Number of a family's rows, the share of them inside their ranges, and the width of the ranges."""

    rows: int
    inside: float
    width: float
    """Median of upper end / lower end."""


def coverage(rows: Sequence[Shares], spread: Spreads) -> Coverage:
    found = [ends(row, spread) for row in rows]
    width = float(np.median([one.high / one.low for one in found]))
    return Coverage(len(found), float(np.mean([1.0 in one for one in found])), width)


def left_out(found: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Coverage]]:
    """Yield each family with the coverage of its rows by constants and spread that were fitted to the others."""
    every = families(found)
    for name, of in every.items():
        others = {other: rows for other, rows in every.items() if other != name}
        chosen = fit(others)[0]
        spread = fit_spread({other: shares(rows, chosen) for other, rows in others.items()})
        yield name, coverage(shares(of, chosen), spread)
