"""Failures of a large job, simulated beside the formulas; and failure rates that were published."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from labkit.course.arguments import integer, require
from labkit.course.phase4_production.fault_tolerance.given.arguments import check_goodput


class Intervals(NamedTuple):
    """Seconds of training between two checkpoints, without the time of saving, by two formulas."""

    young: float
    daly: float


@dataclass(frozen=True)
class FailureRate:
    """Number of interruptions of a job, as published."""

    name: str
    source: str
    num_gpus: int
    interruptions: int
    days: float

    @property
    def gpu_mtbf_seconds(self) -> float:
        """Mean time between failures of one GPU with its share of everything else: GPU-seconds for each failure."""
        return self.num_gpus * self.days * 86_400 / self.interruptions


LLAMA_3 = FailureRate(
    "Llama 3 405B",
    "Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.3.4: unexpected interruptions",
    num_gpus=16_384,
    interruptions=419,
    days=54,
)


def simulated_goodput(
    interval_seconds: float,
    checkpoint_seconds: float,
    restart_seconds: float,
    gpu_mtbf_seconds: float,
    num_gpus: int,
    *,
    failures: int = 2_000,
    seed: int = 0,
) -> float:
    """Return the share of the time that is lasting progress, in a simulation of `failures` failures, one by one.

    Times to the next failure are exponential, with mean gpu_mtbf_seconds / num_gpus. A failure costs the work since the
    last complete checkpoint and a restart, in which the next failure may come. Arguments as in `goodput`.
    """
    check_goodput(interval_seconds, checkpoint_seconds, restart_seconds, gpu_mtbf_seconds, num_gpus)
    require("failures", failures, integer(at_least=1))
    draw = random.Random(seed)
    elapsed = kept = 0.0
    period = interval_seconds + checkpoint_seconds
    for _ in range(failures):
        until_failure = draw.expovariate(num_gpus / gpu_mtbf_seconds)
        elapsed += until_failure
        kept += max(0.0, until_failure - restart_seconds) // period * interval_seconds
    return kept / elapsed
