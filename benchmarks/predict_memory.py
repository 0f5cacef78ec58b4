"""Peak memory of published runs compared with `labkit.predict`; no constant of it is fitted.

Software publishes different measures: `MEASURED` gives each source's measure and stage. Memory that torch's allocator
keeps unused is a range in the prediction, compared at its low end, so that the prediction is too small for a fragmented
run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from predict_rows import Row

from labkit.predict import OneOf, Prediction, Transformer, predict_range
from labkit.predict.costs.memory import Measure
from labkit.predict.ranges import Range


class Published(NamedTuple):
    """Meaning of a source's memory figures."""

    measure: Measure
    stage: int | None = None
    """Pipeline stage that was measured; None: the largest of all ranks."""
    unknown: Mapping[str, Any] = {}
    """Fields of the plan that affect memory and are not stated."""


# torchtitan prints max_memory_reserved of the fullest rank. nanotron resets torch's peaks before it logs (log_memory),
# so that of the two columns of its table only the reserved one includes activations; rank 0, on the first stage, writes
# the table. Its option to gather sequence-parallel inputs again in backward (tp_recompute_allgather) was added while
# the sweep ran, and rows do not state their version.
MEASURED: dict[str, Published] = {
    "zero_bubble_2401_10241": Published("allocated"),
    "torchtitan": Published("reserved"),
    "ultrascale_nanotron": Published("reserved", 0, {"keep_gathered": OneOf((True, False))}),
}


def memory(found: Mapping[str, Sequence[Row]]) -> None:
    """Print one row per source, and another for those runs of nanotron in which nothing is unknown."""
    lines = {name: [row for row in of if row.gib] for name, of in found.items() if name in MEASURED}
    if "ultrascale_nanotron" in lines:
        lines["the same, tensor 1"] = [row for row in lines["ultrascale_nanotron"] if row.plan["tensor"] == 1]
    print("\npeak memory: mean absolute error (median), worst, bias; no constant is fitted")
    print(
        "| source | measure | rows | predicted | inside the range | ZeRO's and Korthikanti's formulas |\n"
        "|---|---|---|---|---|---|"
    )
    for name, of in lines.items():
        if of:
            ranges = [gib(row) for row in of]
            widest = max(high - low for _, low, high in ranges)
            inside = statistics.mean(
                low <= (row.gib or 0) <= high for row, (_, low, high) in zip(of, ranges, strict=True)
            )
            print(
                f"| {name} | {MEASURED[of[0].source].measure} | {len(of)} | "
                f"{_cell([point / (row.gib or 1) - 1 for row, (point, _, _) in zip(of, ranges, strict=True)])} | "
                f"{f'{inside:.0%}' if widest else ''} | {_cell([plain(row) / (row.gib or 1) - 1 for row in of])} |"
            )  # fmt: skip


def out_of_memory(found: Mapping[str, Sequence[Row]]) -> None:
    """Check that no run is predicted to need more than the GPU's memory, since all of them fitted."""
    every = [row for of in found.values() for row in of]
    wrong = []
    for row in every:
        least = min(needed(case) for case in predict_range(row.model, row.plan, row.cluster).cases)
        if least > row.cluster.gpu.memory_gb:
            wrong.append(row)
    print(f"{len(every)} runs that fitted; predicted to need more than the GPU has: {len(wrong)}", end="")
    print("".join(f"\n  {row.key}, {row.model.name}" for row in wrong))


def needed(case: Prediction) -> float:
    """Return the GB needed on the GPU."""
    return (case.memory.total + case.memory.reserved) / 1e9


def gib(row: Row) -> tuple[float, float, float]:
    """Return (GiB to compare, least, most) of a row in its source's measure."""
    published = MEASURED[row.source]
    cases = predict_range(row.model, {**row.plan, **published.unknown}, row.cluster).cases

    def ranged(case: Prediction) -> Range:
        held = case.memory if published.stage is None else case.stages[published.stage]
        return held.measured(published.measure)

    ranges = [ranged(case) for case in cases]
    points = [interval.low for interval in ranges]
    middle = (min(points) + max(points)) / 2
    return middle / 2**30, min(points) / 2**30, max(interval.high for interval in ranges) / 2**30


def plain(row: Row) -> float:
    """Return GiB by the two papers' formulas unchanged: all parameters and layers spread evenly, no head, no loss, no
    temporary memory (Rajbhandari et al. 2020, section 3; Korthikanti et al. 2022, table 2)."""
    if not isinstance(row.model, Transformer):
        raise ValueError(f"{row.key}: only transformers have these formulas")
    model, plan, get = row.model, row.plan, row.plan.get
    t, p, n = plan["tensor"], plan["pipeline"], plan["data"]
    zero = plan["zero"]
    each = 2 / (n if zero == 3 else 1) + 2 / (n if zero >= 2 else 1) + 12 / (n if zero else 1)
    score = 5 * model.heads * model.sequence / model.width if get("attention") == "parts" else 0.0
    factor = (34 / t if plan["sequence_parallel"] else 10 + 24 / t) + score / t
    if plan["recompute"] == "full":
        factor = 2.0
    flying = min(p, plan["batch"] // (plan["microbatch"] * n))
    kept = plan["microbatch"] * model.sequence * model.width * model.layers / p * flying * factor
    return (model.parameters / (t * p) * each + kept) / 2**30


def _cell(signed: Sequence[float]) -> str:
    absolute = [abs(error) for error in signed]
    shown: list[Callable[..., float]] = [statistics.mean, statistics.median, max]
    mean, median, worst = (f"{one(absolute):.1%}" for one in shown)
    return f"{mean} ({median}), {worst}, {statistics.mean(signed):+.1%}"
