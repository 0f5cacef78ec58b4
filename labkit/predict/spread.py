"""How far measured steps are from their prediction: a range that holds nine of ten, the sum of its parts' ranges.

Each kind of part may be faster or slower by a share of its seconds. `python benchmarks/predict.py --fit` finds the
shares, the narrowest that hold published runs; `--leave-out` counts the runs of each source that are inside when
neither shares nor constants were fitted to that source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from labkit.hardware import Topology
from labkit.predict.plan import Plan
from labkit.predict.ranges import Range
from labkit.predict.term import Term

Part = Literal[
    "computing", "bubble", "waiting for hosts", "traffic in nodes", "traffic between nodes",
    "tensor parallel between nodes", "hosts in lockstep",
]  # fmt: skip
COVERAGE = 0.9
"""Share of measured steps that a range is meant to hold."""


class Spread(NamedTuple):
    """Largest deviations of a part from its prediction, as shares of its seconds."""

    faster: float
    slower: float


SPREAD: Mapping[Part, Spread] = MappingProxyType(
    {
        "computing": Spread(0.20, 0.22),
        "bubble": Spread(0.20, 0.20),
        "waiting for hosts": Spread(0.0, 0.52),
        "traffic in nodes": Spread(0.33, 0.78),
        "traffic between nodes": Spread(0.0, 1.2),
        "tensor parallel between nodes": Spread(0.38, 1.2),
        "hosts in lockstep": Spread(0.25, 0.95),
    }
)
"""Range of each part, wider than known software needs, to hold for other software, too. No run shows exposed traffic
between nodes, or waiting for hosts, to be shorter than predicted when the computing beside them is at its lower end."""


def parts(terms: Iterable[Term], plan: Plan, cluster: Topology) -> dict[Part, float]:
    """Seconds of a step by part; the sum is the step's."""
    seconds: dict[Part, float] = dict.fromkeys(SPREAD, 0.0)
    for term in terms:
        seconds[_part(term, plan, cluster)] += term.seconds
    return seconds


def step_range(terms: Iterable[Term], plan: Plan, cluster: Topology) -> Range:
    """Seconds between which `COVERAGE` of measured steps lie."""
    seconds = parts(terms, plan, cluster)
    return Range(
        sum(seconds[part] * (1 - spread.faster) for part, spread in SPREAD.items()),
        sum(seconds[part] * (1 + spread.slower) for part, spread in SPREAD.items()),
    )


def _part(term: Term, plan: Plan, cluster: Topology) -> Part:
    if not plan.run_ahead and plan.pipeline > 1 and cluster.nnodes > 1:
        return "hosts in lockstep"  # which may wait for one another anywhere in the step
    if term.kind == "communication":
        if _span(term.name, plan) <= cluster.nproc_per_node:
            return "traffic in nodes"
        return "tensor parallel between nodes" if term.name == "tensor parallel" else "traffic between nodes"
    if term.kind == "waiting":
        return "waiting for hosts"
    return "bubble" if term.kind == "bubble" else "computing"


def _span(name: str, plan: Plan) -> int:
    """Number of neighbouring ranks among which a term's messages pass."""
    inner = plan.tensor * plan.context
    spans = {"tensor parallel": plan.tensor, "context parallel": inner, "expert parallel": inner * plan.expert}
    return spans.get(name, plan.ranks if name in ("pipeline sends", "tied embedding") else plan.tensor * plan.shared_by)
