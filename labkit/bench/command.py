"""`labkit bench scaling`: measures what its file lacks, one job for each configuration, and prints tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labkit import catalogue, exercises
from labkit.bench.configurations import Configuration, Plans, Timing
from labkit.bench.models import named
from labkit.bench.options import FORMATS, VARIANTS
from labkit.checks.working_modules import show, working_modules
from labkit.course.phase4_production.scaling_study.given import append, read, studies
from labkit.hardware.files import is_file
from labkit.predict.command import parse_cluster


def main(options: argparse.Namespace) -> int:
    """Measure what the file lacks, and print tables. Raises ValueError for bad options, OSError for bad files.

    Exit status 1: a configuration could not be measured.
    """
    console = Console()
    exercise = catalogue.find("scaling_study")
    variants = dict.fromkeys(VARIANTS[strategy] for strategy in options.strategies if strategy in VARIANTS)
    chosen = working_modules(*map(catalogue.find, variants), exercise)
    plans = _plans(options, chosen.modules)
    strategies, batch_sizes = (list(dict.fromkeys(given)) for given in (options.strategies, options.batch_sizes))
    wanted = list(plans.configurations(sorted(set(options.gpus)), strategies, batch_sizes, options.strong))
    if not wanted:
        raise ValueError(
            "--strong needs batch sizes that all GPUs can share equally"
            if options.strong
            else f"--strategies {' '.join(strategies)}: compression is for several GPUs, a hierarchy for several nodes"
        )
    show(chosen)
    failed = _measure(plans, wanted, options.to, console)
    measured = [
        measurement for measurement in read(options.to) if any(plans.is_measured_by(own, measurement) for own in wanted)
    ]
    with exercises.installed(chosen.modules):
        from labkit.exercises import scaling_study
    benchmark = studies(scaling_study.ScalabilityBenchmark, measured, "strong" if options.strong else "weak")
    console.print(benchmark.report("markdown"), markup=False, highlight=False, soft_wrap=True)
    if options.samples:
        _print_costs(benchmark, options.samples, options.price, console)
    for file in options.report:
        file.write_text(benchmark.report(FORMATS[file.suffix]))
        console.print(f"written: {file}", highlight=False)
    console.print(f"measurements: {options.to}; `labkit analyze {options.to}` tells what limits it", highlight=False)
    for configuration, error in failed.items():
        console.print(f"failed: {configuration}: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    return 1 if failed else 0


def _plans(options: argparse.Namespace, modules: Mapping[str, str]) -> Plans:
    named(options.model, options.sequence)
    clusters = {count: parse_cluster(f"{options.cluster}x{count}") for count in options.gpus}
    real = {"gpus": torch.cuda.device_count(), "cpu": max(options.gpus), "none": 0}[options.real]
    given = options.steps, options.warmup, options.repeats
    usual = (10, 3, 3) if real else (2, 1, 1)  # the virtual clock has no noise
    timing = Timing(*(own if value is None else value for value, own in zip(given, usual, strict=True)))
    device = "cpu" if options.real == "cpu" else "cuda"
    file = options.cluster if is_file(options.cluster) else ""
    return Plans(options.model, options.sequence, options.precision, clusters, file, real, device, timing, modules)


def _measure(plans: Plans, wanted: Sequence[Configuration], file: Path, console: Console) -> dict[Configuration, str]:
    """Measure what is missing; return the errors of configurations that could not be measured."""
    recorded = read(file)
    missing = [
        configuration
        for configuration in wanted
        if not any(plans.is_measured_by(configuration, other) for other in recorded)
    ]
    if len(missing) < len(wanted):
        console.print(f"{len(wanted) - len(missing)} of {len(wanted)} are in {file} already", highlight=False)
    failed: dict[Configuration, str] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=len(missing))
        for number, configuration in enumerate(missing, 1):
            progress.update(task, description=str(configuration))
            if not console.is_terminal:  # output goes to a log
                console.print(f"{number}/{len(missing)} {configuration}", highlight=False)
            result = plans.measure(configuration)
            if isinstance(result, str):
                failed[configuration] = result
            else:
                append(file, result)
            progress.advance(task)
    return failed


def _print_costs(benchmark: Any, samples: int, price: float, console: Console) -> None:
    for point in benchmark.points:
        of = point.measurement
        cost = benchmark.cost_per_epoch(of, samples, price)
        dollars = f", {cost.dollars:,.2f} dollars" if price else ""
        gpus = f"{of.world_size} GPU{'s' * (of.world_size > 1)}, {of.strategy}, {of.origin}"
        console.print(
            f"{samples:,} samples on {gpus}: {cost.steps:,} steps, {cost.hours:,.3g} hours, "
            f"{cost.gpu_hours:,.3g} GPU hours{dollars}",
            highlight=False,
            soft_wrap=True,
        )
