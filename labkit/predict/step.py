"""`predict()`: time and memory of one step, the sum of its terms."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from labkit.hardware import Topology
from labkit.predict.constants import FITTED, Constants
from labkit.predict.costs.memory import memory
from labkit.predict.costs.network_terms import network_terms
from labkit.predict.costs.transformer_terms import transformer_terms
from labkit.predict.describe import Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction, PredictionRange
from labkit.predict.ranges import OneOf, corners
from labkit.predict.term import Term


def predict(
    model: Description, plan: Plan, cluster: Topology, *, data_seconds: float = 0.0, constants: Constants = FITTED
) -> Prediction:
    """Predict one step from closed forms: no rank is run, and the cost of predicting does not grow with the ranks.

    `data_seconds`: time that a step waits for its batch. Raises ValueError naming the constraint that the plan
    violates.
    """
    plan.check(model, cluster)
    constants = constants.on(cluster)
    if not 0 <= data_seconds < math.inf:
        raise ValueError(f"data_seconds must be at least 0, got {data_seconds}")
    if isinstance(model, Transformer):
        terms, layers = transformer_terms(model, plan, cluster, constants)
    else:
        terms, layers = network_terms(model, plan, cluster, constants), [1]
    terms.append(Term("data", "data", data_seconds, "given", "the caller"))
    terms.append(_stragglers(terms, cluster, constants))
    return Prediction(model, plan, cluster, tuple(terms), memory(model, plan, layers))


def _stragglers(terms: list[Term], cluster: Topology, constants: Constants) -> Term:
    """Wait for the slowest node, in seconds: `constants.straggle` x log2(nodes), rounded down, x the sum of `terms`."""
    seconds = constants.straggle * max(0, cluster.nnodes.bit_length() - 1) * sum(term.seconds for term in terms)
    formula = f"{constants.straggle:.3g} x log2(nodes) x step"
    return Term("stragglers", "waiting", seconds, formula, "the slowest of all decides")


def predict_range(
    model: Description | OneOf, plan: dict[str, Any], cluster: Topology | OneOf, **options: Any
) -> PredictionRange:
    """Like `predict`, for every combination of unknowns: the model, the cluster, fields of the plan and options may be
    `OneOf`, numbers also `Range`.

    Contradictory combinations are left out. Raises ValueError with the last one's constraint if none is left.
    """
    names, option_names = list(plan), list(options)
    spread = [corners(value) for value in (*plan.values(), model, cluster, *options.values())]
    cases, problem = [], ValueError("nothing to predict")
    for chosen in product(*spread):
        try:
            made = Plan(**dict(zip(names, chosen, strict=False)))
            described, where, *rest = chosen[len(names) :]
            cases.append(predict(described, made, where, **dict(zip(option_names, rest, strict=True))))
        except ValueError as error:
            problem = error
    if not cases:
        raise problem
    return PredictionRange(tuple(cases))
