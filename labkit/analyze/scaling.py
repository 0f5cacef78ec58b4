"""A benchmark's measurements: tables and pictures of its curves, and where the efficiency goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labkit import catalogue, exercises
from labkit.analyze.findings import Analysis, Finding
from labkit.checks.working_modules import working_modules
from labkit.course.phase4_production.scaling_study.given import (
    Scaling,
    ScalingPoint,
    curve_name,
    in_words,
    read,
    studies,
)
from labkit.plots import scaling_study as draw

GOOD = 0.95
"""Efficiency from which on there is nothing to improve."""


def analyze_measurements(file: Path) -> Analysis:
    """Analyze a file of `labkit bench scaling`. Raises ValueError if it has no measurements."""
    measured = read(file)
    if not measured:
        raise ValueError(f"{file} has no measurements")
    with exercises.installed(working_modules(catalogue.find("scaling_study")).modules):
        from labkit.exercises import scaling_study

    analysis = Analysis(f"Scaling in {file}")
    kinds: tuple[Scaling, ...] = ("weak", "strong")
    benchmarks = {kind: studies(scaling_study.ScalabilityBenchmark, measured, kind) for kind in kinds}
    for kind, benchmark in benchmarks.items():
        curves: dict[str, list[ScalingPoint]] = {}
        for point in benchmark.points:
            curves.setdefault(curve_name(point), []).append(point)
        alone = [point for own in curves.values() if len(own) < 2 for point in own]
        benchmark.points = [point for point in benchmark.points if point not in alone]
        if not benchmark.points:
            continue
        analysis.findings += [_finding(name, own) for name, own in curves.items() if len(own) > 1]
        analysis.facts += [in_words(*fit) for fit in benchmark.fits()]
        analysis.pictures.append(draw(benchmark.points, f"{kind.capitalize()} scaling"))
        analysis.table += benchmark.report("markdown").partition("## What limits it")[0]
    if not analysis.pictures:
        raise ValueError(f"{file} has no curve: each needs two numbers of GPUs")
    return analysis


def _finding(name: str, own: Sequence[ScalingPoint]) -> Finding:
    """Return the finding about the efficiency lost at a curve's last point."""
    first, last = own[0], own[-1]
    of = last.measurement
    text = f"{name}: efficiency {last.efficiency:.0%} at {of.world_size} GPUs"
    if last.efficiency >= GOOD:
        return Finding(f"{text}: nothing limits it so far.")
    exposed = 1 - min(1.0, of.computing / of.seconds)
    for_a_sample = [point.measurement.computing / point.measurement.batch_size for point in (first, last)]
    slower = for_a_sample[1] / for_a_sample[0] - 1
    if exposed >= slower:
        return Finding(
            f"{text}: exposed communication takes {exposed:.0%} of a step.",
            "larger batches for each GPU or gradient accumulation; larger buckets and overlap; compression; sharding "
            "within a node; a faster network.",
        )
    return Finding(
        f"{text}: computing itself is less efficient, {slower:.0%} slower for each sample than at "
        f"{first.measurement.world_size}.",
        "batches are too small for a GPU: let them grow with the GPUs, as weak scaling does.",
    )
