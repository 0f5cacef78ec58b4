"""A whole calibration: measure on local ranks, fit, check; writes no file."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.calibrate import collectives, operators, step
from labkit.calibrate.fitting import NoFit
from labkit.calibrate.machine import Machine
from labkit.calibrate.preset import FittedPreset, build
from labkit.calibrate.timing import Sample
from labkit.clusters import Job
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual
from labkit.hardware import Topology

ATTEMPTS = 3
"""Number of attempts: on a busy machine times may contradict each other."""
Tell = Callable[[str], None]
"""Callback for a line of text after each sample."""


class MeasuringFailed(RuntimeError):
    """A rank failed while measuring; the message is the run's diagnosis."""


@dataclass(frozen=True)
class Calibration:
    """Results of a calibration."""

    machine: Machine
    samples: tuple[Sample, ...]
    fitted: FittedPreset
    checks: tuple[step.Check, ...]
    date: str
    quick: bool
    load: float
    """Load average of the last minute at the start, due to other processes."""

    def measured(self) -> dict[str, Any]:
        """The `measured` section of the preset's file."""
        return {
            "by": "labkit calibrate" + (" --quick" if self.quick else ""),
            "date": self.date,
            "torch": torch.__version__,
            "device": self.machine.name,
            "ranks": self.machine.ranks,
            "threads": self.machine.threads,
            "load": self.load,
            "quantities": [one.to_plain() for one in self.fitted.quantities],
            "samples": [{**one.to_plain(), "fitted": self.fitted.seconds.get(one)} for one in self.samples],
            "check": [one.to_plain() for one in self.checks],
        }


def steps(machine: Machine, quick: bool) -> int:
    """Number of times that `calibrate` calls `tell`."""
    both = machine.ranks > 1
    return operators.steps(machine, quick) + (collectives.steps(machine, quick) if both else 0) + 1 + both


def calibrate(machine: Machine, *, quick: bool = False, tell: Tell = lambda text: None) -> Calibration:
    """Measure `machine` and describe it as a cluster.

    All ranks measure at the same time, so that they compete for shared resources. Raises MeasuringFailed, or NoFit if
    the times contradict each other in every attempt.
    """
    date, load = datetime.date.today().isoformat(), os.getloadavg()[0]
    source = f"measured {date}, torch {torch.__version__}, {machine.name}, {machine.ranks} ranks"
    for attempt in range(ATTEMPTS):
        samples = _samples(machine, quick, tell)
        try:
            fitted = build(machine, samples, source)
            break
        except NoFit as error:
            if attempt == ATTEMPTS - 1:
                raise
            tell(f"once more: {error}")
    checks = []
    for ranks in sorted({1, min(2, machine.ranks)}):
        seconds, spread, quickest = max(_on_ranks(step.measure, machine, ranks, 20 if quick else 90, tell))
        modelled = _on_virtual_ranks(machine, fitted.cluster, ranks)
        predicted = step.expected(fitted.cluster, ranks)
        checks.append(step.Check(ranks, seconds, spread, quickest, modelled, predicted))
    return Calibration(machine, tuple(samples), fitted, tuple(checks), date, quick, load)


def _samples(machine: Machine, quick: bool, tell: Tell) -> list[Sample]:
    of_ranks = _on_ranks(operators.measure, machine, machine.ranks, quick, tell)
    # the slowest rank's sample of each kind: a step waits for the slowest
    slowest = [max(map(_sample, same), key=lambda one: one.seconds) for same in zip(*of_ranks, strict=True)]
    if machine.ranks == 1:
        return slowest
    return [*slowest, *map(_sample, _on_ranks(collectives.measure, machine, machine.ranks, quick, tell)[0])]


def _on_ranks(measure: Callable[[Machine, Any], Any], machine: Machine, ranks: int, how: Any, tell: Tell) -> list[Any]:
    """Return the result of `measure(machine, how)` on each rank."""
    rest = ""

    def on_output(rank: int, stream: str, text: str) -> None:
        nonlocal rest
        if rank == 0 and stream == "stdout":
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                tell(line)

    # nothing is printed while a sample is timed, so the long limit has to catch a hang
    job = Job.calling(
        measure, machine, how, trace=False, timeout=900, hang_timeout=120, environment=machine.environment
    )
    run = local(ranks, backend=machine.backend).run(job, on_output)
    if not run.ok:
        raise MeasuringFailed(run.diagnosis())
    return run.values


def _on_virtual_ranks(machine: Machine, cluster: Topology, ranks: int) -> float:
    """Seconds of the step of `step.measure` on the modelled clock, on which every step takes equally long."""
    placed = replace(virtual(), topology=replace(cluster, nnodes=1, nproc_per_node=ranks))
    run = placed.run(Job.calling(step.measure, replace(machine, device="cpu"), 2, trace=False, timeout=600))
    if not run.ok:
        raise MeasuringFailed(run.diagnosis())
    median, _, _ = run.values[0]
    return float(median)


def _sample(plain: dict[str, Any]) -> Sample:
    return Sample(**plain)
