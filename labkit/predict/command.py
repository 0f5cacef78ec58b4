"""`labkit predict`: predict the time and memory of a training step, for one layout or for the fastest of all."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import math
import re
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from labkit.command_line.parser import CommandParser
from labkit.hardware import GPU, GPUS, LINKS, PRESETS, Link, Topology, topology
from labkit.hardware.files import is_file
from labkit.hardware.settings import parse, with_settings
from labkit.predict import scale_report
from labkit.predict.costs.placing import names
from labkit.predict.describe import Description, model
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction
from labkit.predict.running import fastest_microbatches, goodput, run, scaling_over
from labkit.predict.search import search
from labkit.predict.spread import COVERAGE
from labkit.predict.step import predict
from labkit.units import duration

if TYPE_CHECKING:
    from rich.table import Table

SHORT = {
    "a100": "dgx-a100", "h100": "dgx-h100", "h200": "dgx-h200", "b200": "dgx-b200", "v100": "dgx-1", "t4": "cloud-t4",
    "l4": "cloud-l4", "4090": "workstation-4090",
}  # fmt: skip
WITHOUT_BF16 = ("v100", "t4")
"""Volta and Turing, by the first part of a GPU's name."""
PLAN = {name: hint for name, hint in get_type_hints(Plan).items() if name in {field.name for field in fields(Plan)}}
"""Fields of a plan with their types: each has an option of its name."""


def add_arguments(parser: CommandParser) -> None:
    """Add the options."""
    parser.description = __doc__
    parser.add_argument(
        "--model", required=True, help="the model: gpt-13b, llama3-8b, resnet50, vit-l16, mlp-784x256x10, ..."
    )
    parser.add_argument(
        "--cluster",
        required=True,
        help="a kind of GPU or preset and a number of GPUs: a100x32, p5x64; or a file: mine.json, mine.jsonx16",
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="repeatable: gpu.memory_gb=40, inter_node=ib-ndr, inter_node.gb_per_s=20, constants.host_seconds=1e-5",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=256, help="samples of a step (default: %(default)s)")
    parser.add_argument("--sequence", type=int, help="tokens of a sample, if not the model's own")
    meanings = _meanings()
    for name, hint in PLAN.items():
        flag, meaning = f"--{name.replace('_', '-')}", meanings.get(name)
        if hint is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=meaning)
        elif get_origin(hint) is Literal:
            parser.add_argument(flag, metavar="|".join(get_args(hint)), help=meaning)
        elif name != "batch":
            parser.add_argument(flag, type=float if hint is float else int, metavar="N", help=meaning)
    parser.add_argument(
        "--scale", metavar="FROM..TO",
        help="efficiency from FROM to TO GPUs by doubling, data parallelism growing: 1..256; --batch is the first's; "
        "the microbatch is the fastest that fits unless --microbatch is given",
    )  # fmt: skip
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--weak", action="store_true", help="let the batch grow with the GPUs, with --scale (default)")
    kept.add_argument(
        "--strong", action="store_true", help="keep the batch, so that each GPU's share shrinks, with --scale"
    )
    parser.add_argument(
        "--report", type=Path, action="append", default=[], metavar="FILE",
        help="write the table of --scale there, as .md, .html or .json; or its picture, as .png; repeatable",
    )  # fmt: skip
    parser.add_argument("--samples", type=float, help="samples of an epoch: adds hours, and dollars with --price")
    parser.add_argument("--price", type=float, help="dollars of one GPU and hour")
    parser.add_argument("--explain", action="store_true", help="show each term's formula and source")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the prediction there; -: print it and nothing else"
    )


def _meanings() -> dict[str, str]:
    """Return the meaning and default of each field of a plan: the docstrings below the fields."""
    (of_class,) = ast.parse(inspect.getsource(Plan)).body
    assert isinstance(of_class, ast.ClassDef)
    meanings = {}
    for statement, text in pairwise(of_class.body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(text, ast.Expr)
        ):
            meaning = " ".join(ast.literal_eval(text.value).split()).replace("`", "").replace("%", "%%")
            default = "" if statement.value is None else f" Default: {ast.literal_eval(statement.value)}."
            meanings[statement.target.id] = meaning + default
    return meanings


def main(options: argparse.Namespace, draw: scale_report.Draw) -> int:
    """Print the table and write the JSON; `draw` makes the picture of a scaling study.

    Raises ValueError for unknown names and contradictory options.
    """
    if options.price is not None and options.samples is None:
        raise ValueError("--price needs --samples: dollars are of an epoch")
    if options.scale:
        return _scaled(options, draw)
    for name in ("weak", "strong", "report"):
        if getattr(options, name):
            raise ValueError(f"--{name} needs --scale, such as --scale 1..256")
    prediction, out_of = _predicted(options)
    whole = None if options.samples is None else run(prediction, options.samples, options.price or 0.0)
    if options.json == Path("-"):
        print(json.dumps(prediction.to_plain(), indent=2))
        return 0
    if options.json:
        try:
            options.json.write_text(json.dumps(prediction.to_plain(), indent=2) + "\n")
        except OSError as error:
            raise ValueError(f"cannot write {options.json}: {error.strerror}") from None
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_heading(prediction, out_of), markup=False)
    console.print("", _step_table(prediction), "", _memory_table(prediction), "", sep="\n")
    console.print(_ranges(prediction), _rates(prediction), sep="\n", markup=False)
    if not options.explain:  # whose output includes it
        for line in prediction.shortage():
            console.print(fill(line, console.width, subsequent_indent="    "), markup=False)
    if whole:
        dollars = "" if options.price is None else f", {whole.dollars:,.{0 if whole.dollars >= 100 else 2}f} dollars"
        hours = f"{whole.gpu_hours:,.{0 if whole.gpu_hours >= 100 else 2}f} GPU hours"
        console.print(f"{options.samples:,.0f} samples: {_long(whole.hours)}, {hours}{dollars}")
    if options.explain:
        for line in prediction.explain().splitlines():
            indented = " " * (15 if line.startswith(" ") else 2)
            console.print(fill(line, console.width, subsequent_indent=indented), markup=False)
    return 0


def _scaled(options: argparse.Namespace, draw: scale_report.Draw) -> int:
    """Print how the step scales, and write the reports."""
    from rich.console import Console

    described: Description = model(options.model, sequence=options.sequence)
    clusters = scale_report.clusters(options.cluster, options.scale, dict(map(parse, options.settings)), parse_cluster)
    given = _given(options)
    sides = math.prod(given.get(axis, 1) for axis in ("tensor", "pipeline", "context"))
    if "data" in given:
        raise ValueError("--data follows from --scale: all GPUs that are added are for data parallelism")
    plan = Plan(batch=options.batch, **given, data=max(1, clusters[0].world_size // sides))
    weak, microbatches, chosen = not options.strong, None, ""
    if "microbatch" not in given:
        microbatches = fastest_microbatches(described, plan, clusters, weak=weak)
        chosen = ", the fastest microbatch that fits"
    points = scaling_over(described, plan, clusters, weak=weak, microbatches=microbatches)
    made = scale_report.Report(
        f"{described.name} on {clusters[0].world_size} to {clusters[-1].world_size} {names(clusters[-1])}, "
        f"{'weak' if weak else 'strong'} scaling, {plan.precision}{chosen}",
        tuple(points), options.samples, options.price,
    )  # fmt: skip
    for file in options.report:
        made.write(file, draw)
    Console(highlight=False).print(made.title, "", made.table(), sep="\n")
    return 0


def _heading(prediction: Prediction, out_of: str) -> str:
    """Title of the table, with the defaults that affect the result."""
    plan, cluster = prediction.plan, prediction.cluster
    links = f"{cluster.nnodes} x {cluster.nproc_per_node}, {cluster.intra_node.name}"
    if cluster.nnodes > 1:
        links += f", {cluster.inter_node.name} between nodes"
    chunks = f" in {plan.chunks} chunks" if plan.chunks > 1 else ""
    chunks += ", a layer fewer at both ends" if plan.balance == "ends" else ""
    sharded = f" over {plan.sharded_over} of {plan.shared_by} ranks" if plan.zero_ranks else ""
    precision: str = plan.precision
    without = [gpu.name for gpu in cluster.kinds if gpu.name.split("-")[0] in WITHOUT_BF16]
    if precision == "bf16" and without:
        precision += f" ({' and '.join(without)} has none: at its rate in fp16)"
    if isinstance(prediction.model, Transformer):
        precision += f", attention {plan.attention}, fusion {plan.fusion}"
    lines = [
        f"{prediction.model.name} on {plan.ranks} {names(cluster)} ({links})",
        f"data {plan.data}, tensor {plan.tensor}, pipeline {plan.pipeline}{chunks}, context {plan.context}, "
        f"ZeRO {plan.zero}{sharded}",
        f"batch {plan.batch} in microbatches of {plan.microbatch}, recompute {_recomputed(plan)}",
        precision,
        *_sources(cluster),
        out_of,
    ]
    return "\n  ".join(filter(None, lines))


def _recomputed(plan: Plan) -> str:
    share = plan.recomputed_layers
    return (
        plan.recompute if share == 1 or plan.recompute == "none" else f"{plan.recompute} in {share:.0%} of the layers"
    )


def _sources(cluster: Topology) -> list[str]:
    """Sources of the parts that differ from the tables: measured on a machine, or set by hand."""
    parts: list[GPU | Link] = [*cluster.kinds, cluster.intra_node]
    if cluster.nnodes > 1:
        parts.append(cluster.inter_node)
    listed = {gpu.source for gpu in GPUS.values()} | {link.source for link in LINKS.values()}
    of = {part.source: part.name for part in parts if part.source not in listed}
    return [f"{name}: {source}" for source, name in of.items()]


def _step_table(prediction: Prediction) -> Table:
    from rich.table import Table

    unit, size = ("s", 1.0) if prediction.step_seconds >= 1 else ("ms", 1e-3)
    digits = max(0, 3 - math.floor(math.log10(prediction.step_seconds / size)))
    table = Table("part of the step, predicted", box=None, pad_edge=False)
    table.add_column(unit, justify="right")
    table.add_column("share", justify="right")
    for name, seconds in prediction.breakdown().items():
        shown = f"{seconds / size:.{digits}f}"
        # do not show a nonzero value as 0.000
        least = f"< {10**-digits:.{digits}f}"
        table.add_row(name, shown if float(shown) else least, f"{seconds / prediction.step_seconds:.1%}")
    table.add_row("step", f"{prediction.step_seconds / size:.{digits}f}", "100.0%", style="bold")
    return table


def _memory_table(prediction: Prediction) -> Table:
    from rich.table import Table

    table = Table("memory of the fullest rank", box=None, pad_edge=False)
    table.add_column("GB", justify="right")
    for name, nbytes in prediction.memory.categories().items():
        if nbytes:
            table.add_row(name, f"{nbytes / 1e9:.2f}" if nbytes >= 5e6 else "< 0.01")
    total = (prediction.memory.total + prediction.memory.reserved) / 1e9
    fits = "" if prediction.fits else " (does not fit)"
    table.add_row(f"all, of {prediction.memory_gb:g}{fits}", f"{total:.2f}", style="bold")
    return table


def _ranges(prediction: Prediction) -> str:
    step, device = prediction.step_range, prediction.device_bytes
    return (
        f"{COVERAGE:.0%} of measured steps take {duration(step.low)} to {duration(step.high)}\n"
        f"memory, with what torch's allocator may keep, is up to {device.high / 1e9:.1f} GB"
    )


def _rates(prediction: Prediction) -> str:
    unit, good = "tokens" if prediction.model.units_per_sample > 1 else "samples", goodput(prediction)
    return (
        f"{prediction.tokens_per_second:,.0f} {unit}/s\n{prediction.utilization}\n"
        f"goodput {good.share:.1%}, with a checkpoint every {_long(good.checkpoint_every_seconds / 3600)}"
    )


def _long(hours: float) -> str:
    """`0.0253` as `1.52 minutes`, `960` as `40 days`."""
    for unit, size in (("days", 24.0), ("hours", 1.0), ("minutes", 1 / 60)):
        if hours >= 2 * size:
            return f"{hours / size:,.3g} {unit}" if hours < 1000 * size else f"{hours / size:,.0f} {unit}"
    return f"{hours * 3600:.3g} seconds"


def _predicted(options: argparse.Namespace) -> tuple[Prediction, str]:
    described: Description = model(options.model, sequence=options.sequence)
    cluster = with_settings(parse_cluster(options.cluster), dict(map(parse, options.settings)))
    given = _given(options)
    if isinstance(described, Transformer):
        given = {**_software(given), **given}
    if {"tensor", "pipeline", "data", "microbatch"} <= set(given):
        given.setdefault("sequence_parallel", given["tensor"] > 1)
        if given.get("chunks", 1) > 1:
            given.setdefault("schedule", "interleaved")
        return predict(described, Plan(batch=options.batch, **given), cluster), ""
    made = search(described, options.batch, cluster, **given)
    return made.best, f"the best of {len(made.found):,} layouts; {len(made.rejected):,} are out"


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of the plan that are given, but for the batch."""
    return {name: value for name in PLAN if name != "batch" and (value := getattr(options, name)) is not None}


def _software(given: dict[str, Any]) -> dict[str, Any]:
    """Return the software that a recomputation given by name belongs to, unless other options name another.

    Full recomputation is that of Megatron in 2021, with unfused attention and without sequence parallelism; selective
    recomputes unfused attention (Korthikanti et al. 2022). A fused kernel leaves it nothing to recompute.
    """
    how = given.get("recompute", "none")
    if how == "none" or "attention" in given or "recomputed_layers" in given:
        return {}
    return {"attention": "parts", **({"sequence_parallel": False} if how == "full" else {})}


def parse_cluster(text: str) -> Topology:
    """`a100x32`: 32 GPUs in nodes as the preset has them; `mine.json`: as the file says; `mine.jsonx16`: both.

    Raises ValueError if the text is invalid.
    """
    parts = re.fullmatch(r"(.+?)[xX](\d+)", text)
    if is_file(text) and (parts is None or not is_file(parts[1])):
        return topology(text)
    if parts is None:
        raise ValueError(
            f"a cluster is a kind of GPU, x, and a number of GPUs, such as a100x32, or a file, such as mine.json; "
            f"got {text!r}"
        )
    kind = parts[1] if is_file(parts[1]) else parts[1].lower()
    name, gpus = SHORT.get(kind, kind), int(parts[2])
    if name not in PRESETS and not is_file(name):
        raise ValueError(f"unknown kind {parts[1]!r}; there are: {', '.join((*SHORT, *PRESETS))}")
    node = topology(name)
    if gpus < 1 or (gpus > node.nproc_per_node and gpus % node.nproc_per_node):
        raise ValueError(f"{gpus} GPUs do not fill nodes of {node.nproc_per_node}")
    if gpus <= node.nproc_per_node:
        return replace(node, nnodes=1, nproc_per_node=gpus)
    return replace(node, nnodes=gpus // node.nproc_per_node)
