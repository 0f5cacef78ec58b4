"""Time of a pipeline's step: the slowest stage's work, and the idle time (bubble) of the schedule.

GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2019) idle (p-1)(F+B); interleaving divides that by the number of
chunks per rank (Narayanan et al. 2021); zero-bubble schedules split backward into B, for inputs, and W, for weights,
and fill the idle time with W: ZB-H1 idles (p-1)(F+B-W), ZB-H2 (p-1)(F+B-2W), ZB-V not at all when the three are equal
(Qi et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.predict.plan import Plan, Schedule

KINDS: dict[Schedule, str] = {
    "gpipe": "(p-1)(F+B)",
    "1f1b": "(p-1)(F+B)",
    "interleaved": "(p-1)(F+B)/v",
    "zb-h1": "(p-1)(F+B-W)",
    "zb-h2": "(p-1)(F+B-2W)",
    "zb-v": "(p-1)(F+B-2W)/2",
}


def idle_seconds(plan: Plan, stages: Sequence[tuple[float, float, float]]) -> float:
    """Seconds added to microbatches x the slowest stage; `stages`: (F, B, W) of one microbatch for each stage.

    The first microbatch passes every stage forward and back, so the other stages count with their own times.
    """
    if len(stages) <= 1:
        return 0.0
    totals = [sum(stage) for stage in stages]
    slowest = totals.index(max(totals))
    others = [stage for index, stage in enumerate(stages) if index != slowest]
    match plan.schedule:
        case "gpipe" | "1f1b":
            return sum(map(sum, others))
        case "interleaved":
            return sum(map(sum, others)) / plan.chunks
        case "zb-h1":
            return sum(max(0.0, forward + inputs) for forward, inputs, _ in others)
        case "zb-h2":
            return sum(max(0.0, forward + inputs - weights) for forward, inputs, weights in others)
        case "zb-v":
            return sum(max(0.0, forward + inputs - weights) for forward, inputs, weights in others) / 2


def in_flight(plan: Plan, stage: int) -> float:
    """Number of microbatches whose activations stage `stage` holds at once, in units of all its layers."""
    p, m = plan.pipeline, plan.microbatches
    if p == 1:
        return 1.0
    match plan.schedule:
        case "gpipe":
            return float(m)
        case "interleaved":
            # in groups of p: p(1 + (p-1)/(pv)) on the first stage (Narayanan et al. 2021, Korthikanti et al. 2022)
            warm = (p - stage - 1) * 2 + (plan.chunks - 1) * plan.group + 1
            return min(float(m), warm / plan.chunks)
        case "zb-h2":
            return min(float(m), 2 * (p - stage) - 1)
        case "zb-v":
            return min(float(m), float(p))
        case _:
            return min(float(m), float(p - stage))


def weights_waiting(plan: Plan, stage: int) -> float:
    """Number of microbatches whose weight gradients are deferred on stage `stage`, besides those in flight.

    Zero-bubble schedules start them so late that all stages hold equally many microbatches (Qi et al. 2024, section 2).
    """
    each = {"zb-h1": 1, "zb-h2": 2}.get(plan.schedule)
    if each is None:
        return 0.0
    return max(0.0, min(float(each * stage), plan.microbatches - in_flight(plan, stage)))


def split_by_pace(layers: int, paces: Sequence[float], first: float, last: float) -> list[int]:
    """Number of layers in each stage such that the slowest stage is as fast as possible. `paces`: seconds of a layer on
    each stage's GPUs; `first` and `last`: seconds of the embedding on the first and of the head on the last stage."""
    counts, ends = [0] * len(paces), [0.0] * len(paces)
    ends[0] += first
    ends[-1] += last
    for _ in range(layers):  # each layer goes where it ends first
        stage = min(range(len(paces)), key=lambda stage: (counts[stage] + 1) * paces[stage] + ends[stage])
        counts[stage] += 1
    return counts


def split_layers(plan: Plan, layers: int, first: float, last: float) -> list[int]:
    """Number of layers in each stage; `first` and `last`: cost of the embedding and of the head, in layers.

    With `balance` "cost" the first and last stage have fewer layers, such that the slowest stage is as fast as
    possible; with "ends", one fewer. With "matrices" each stage takes layers until its share is passed, so early stages
    have the most.
    """
    p = plan.pipeline
    if p == 1:
        return [layers]
    if plan.balance in ("layers", "ends"):
        extra = 2 if plan.balance == "ends" else 0
        even, spare = divmod(layers + extra, p * plan.chunks)
        # with chunks, stage i has places i, i + p, i + 2p, ...; the first places have a layer more
        counts = [sum(even + (place < spare) for place in range(stage, p * plan.chunks, p)) for stage in range(p)]
        counts[0] -= extra // 2
        counts[-1] -= extra // 2
        return counts
    if plan.balance == "matrices":
        counts, stage = [0] * p, 0
        for layer in range(1, layers + 1):
            counts[stage] += 1
            if layer > (layers + last) * (stage + 1) / p:
                stage += 1
        return counts
    best: tuple[float, list[int]] = (math.inf, [])
    for at_end in range(0, layers // p + 2):
        for at_start in range(0, min(layers // p + 2, layers - at_end + 1)):
            rest = layers - at_end - at_start
            middle = [rest // (p - 2) + (1 if index < rest % (p - 2) else 0) for index in range(p - 2)] if p > 2 else []
            if p == 2 and rest:
                continue
            longest = max(at_end + last, at_start + first, *middle, 0)
            if longest < best[0]:
                best = (longest, [at_start, *middle, at_end])
    return best[1] or [layers // p + (1 if stage < layers % p else 0) for stage in range(p)]
