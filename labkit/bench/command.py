"""`labkit bench scaling`: how DDP and FSDP scale, on real GPUs, on virtual ones, and as predicted.

Real ranks are used as far as this machine has GPUs; virtual ones and predictions are for all numbers. Each measurement
is appended to a file as soon as it is made. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labkit import catalogue, exercises
from labkit.bench.configurations import ZERO, Configuration, Plans, Timing
from labkit.bench.models import named, with_sequence
from labkit.checks.working_modules import working_modules
from labkit.course.phase4_production.scaling_study.given import append, read, studies
from labkit.hardware.files import is_file
from labkit.predict.command import parse_cluster

FORMATS = {".md": "markdown", ".html": "html", ".json": "json", ".csv": "csv"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit bench", description=__doc__)
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    scaling = kinds.add_parser("scaling", help="throughput, efficiency and memory as GPUs are added")
    scaling.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="default: 1 2 4 8")
    scaling.add_argument(
        "--strategies", nargs="+", default=["ddp"], choices=tuple(ZERO), help="of exercises 11 and 15; default: ddp"
    )
    scaling.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[32], metavar="N",
        help="samples of each GPU; with --strong of all together; default: 32",
    )  # fmt: skip
    scaling.add_argument("--model", default="resnet50", help="resnet50, gpt-1.3b, mlp-784x256x10, ... (%(default)s)")
    scaling.add_argument("--sequence", type=int, metavar="N", help="tokens of a sample, if not the model's own")
    scaling.add_argument("--cluster", default="a100", metavar="KIND", help="virtual GPUs (default: %(default)s)")
    scaling.add_argument("--strong", action="store_true", help="all GPUs share the batch; default: weak scaling")
    scaling.add_argument(
        "--real", choices=("gpus", "cpu", "none"), default="gpus",
        help="real ranks: this machine's GPUs, or processes on its CPU (default: %(default)s)",
    )  # fmt: skip
    scaling.add_argument("--steps", type=int, metavar="N", help="of a repeat (default: 10; 2 if all is virtual)")
    scaling.add_argument("--warmup", type=int, metavar="N", help="steps before (default: 3; 1)")
    scaling.add_argument("--repeats", type=int, metavar="N", help="for the spread (default: 3; 1)")
    scaling.add_argument("--samples", type=int, metavar="N", help="of an epoch: prints what it costs")
    scaling.add_argument("--price", type=float, default=0.0, metavar="DOLLARS", help="of one GPU and hour")
    scaling.add_argument("--to", type=Path, default=Path("scaling.jsonl"), metavar="FILE", help="default: %(default)s")
    scaling.add_argument(
        "--report", type=Path, action="append", default=[], metavar="FILE", help=f"ends in {', '.join(FORMATS)}"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure what the file lacks, and print tables. Raises ValueError for bad options, OSError for bad files.

    Exit status 1: a configuration could not be measured.
    """
    options = _parser().parse_args(arguments)
    _check(options)
    console = Console()
    exercise = catalogue.find("scaling_study")
    chosen = working_modules(exercise)
    plans = _plans(options, chosen.modules)
    strategies, batch_sizes = (list(dict.fromkeys(given)) for given in (options.strategies, options.batch_sizes))
    wanted = list(plans.configurations(sorted(set(options.gpus)), strategies, batch_sizes, options.strong))
    if not wanted:
        raise ValueError("--strong needs batch sizes that all GPUs can share equally")
    for note in chosen.notes:
        console.print(note, highlight=False)
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


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError for options that would fail only after measuring, or in the middle of it."""
    for file in options.report:
        if file.suffix not in FORMATS:
            raise ValueError(f"--report {file}: its name must end in {', '.join(FORMATS)}")
    for file in (*options.report, options.to):
        if not file.parent.is_dir():
            raise ValueError(f"there is no folder {file.parent} for {file.name}")
    for name, least in {"gpus": 1, "batch_sizes": 1, "steps": 1, "warmup": 0, "repeats": 1, "samples": 1}.items():
        value = getattr(options, name)
        lowest = min(value) if isinstance(value, list) else value
        if lowest is not None and lowest < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {lowest}")
    if not 0 <= options.price < float("inf"):
        raise ValueError(f"--price must be a number of dollars, got {options.price}")
    if options.price and options.samples is None:
        raise ValueError("--price needs --samples: dollars are of an epoch")


def _plans(options: argparse.Namespace, modules: Mapping[str, str]) -> Plans:
    model = named(options.model)
    if options.sequence is not None:
        with_sequence(model, options.sequence)
    clusters = {count: parse_cluster(f"{options.cluster}x{count}") for count in options.gpus}
    real = {"gpus": torch.cuda.device_count(), "cpu": max(options.gpus), "none": 0}[options.real]
    given = options.steps, options.warmup, options.repeats
    usual = (10, 3, 3) if real else (2, 1, 1)  # the virtual clock has no noise
    timing = Timing(*(own if value is None else value for value, own in zip(given, usual, strict=True)))
    device = "cpu" if options.real == "cpu" else "cuda"
    file = options.cluster if is_file(options.cluster) else ""
    return Plans(options.model, options.sequence, clusters, file, real, device, timing, modules)


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
