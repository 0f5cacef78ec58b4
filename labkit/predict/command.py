"""`labkit predict`: a prediction, or the best layout, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.hardware import PRESETS, Topology, topology
from labkit.hardware.files import is_file
from labkit.hardware.settings import parse, with_settings
from labkit.predict.describe import Description, model
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction
from labkit.predict.running import goodput, run
from labkit.predict.search import search
from labkit.predict.step import predict

SHORT = {
    "a100": "dgx-a100", "h100": "dgx-h100", "h200": "dgx-h200", "b200": "dgx-b200", "v100": "dgx-1", "t4": "cloud-t4",
    "l4": "cloud-l4", "4090": "workstation-4090",
}  # fmt: skip
LAYOUT = ("tensor", "pipeline", "context", "data", "microbatch", "chunks", "zero")
CHOICES = ("schedule", "recompute", "precision", "attention", "fusion", "offload", "compression")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labkit predict", description=__doc__)
    parser.add_argument("--model", required=True, help="gpt-13b, llama3-8b, resnet50, vit-l16, mlp-784x256x10, ...")
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
    for name in LAYOUT:
        parser.add_argument(f"--{name}", type=int, help="default: the best")
    for name in CHOICES:
        parser.add_argument(f"--{name}")
    parser.add_argument("--samples", type=float, help="of an epoch: adds hours, and dollars with --price")
    parser.add_argument("--price", type=float, default=0.0, help="dollars of one GPU and hour")
    parser.add_argument("--explain", action="store_true", help="each term's formula and source")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the prediction there")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Print the table and write the JSON. Raises ValueError that names what is unknown or contradicts itself."""
    options = _parser().parse_args(arguments)
    found, out_of = _predicted(options)
    from rich.console import Console
    from rich.table import Table

    plan, console = found.plan, Console()
    console.print(
        f"{found.model.name} on {plan.ranks} {found.cluster.gpu.name}: tensor {plan.tensor}, pipeline {plan.pipeline}"
        f"{f' in {plan.chunks} chunks' if plan.chunks > 1 else ''}, context {plan.context}, data {plan.data}, "
        f"zero {plan.zero}, microbatch {plan.microbatch} of batch {plan.batch}, recompute {plan.recompute}{out_of}"
    )
    table = Table("part of the step", "seconds", "share")
    for name, seconds in found.breakdown().items():
        table.add_row(name, f"{seconds:.4g}", f"{seconds / found.step_seconds:.1%}")
    table.add_row("step", f"{found.step_seconds:.4g}", "", style="bold")
    console.print(table)
    held = Table("memory", "GB")
    for name, nbytes in found.memory.categories().items():
        held.add_row(name, f"{nbytes / 1e9:.2f}")
    limit = found.cluster.gpu.memory_gb
    total = (found.memory.total + found.memory.reserved) / 1e9
    held.add_row("all, of " + f"{limit:g}", f"{total:.2f}" + ("" if found.fits else "  does not fit"), style="bold")
    console.print(held)
    unit = "tokens" if found.model.units_per_sample > 1 else "samples"
    good = goodput(found)
    console.print(
        f"{found.tokens_per_second:,.0f} {unit}/s, MFU {found.mfu():.1%} (model FLOPs), "
        f"HFU {found.mfu('hardware'):.1%}; "
        f"goodput {good.share:.1%} with a checkpoint every {good.checkpoint_every_seconds / 60:.0f} minutes"
    )
    if options.samples:
        whole = run(found, options.samples, options.price)
        console.print(
            f"{options.samples:,.0f} samples: {whole.hours:,.2f} hours, {whole.gpu_hours:,.1f} GPU hours"
            + (f", {whole.dollars:,.0f} dollars" if options.price else "")
        )
    if options.explain:
        console.print(found.explain(), highlight=False, markup=False)
    if options.json:
        options.json.write_text(json.dumps(found.to_plain(), indent=2) + "\n")
    return 0


def _predicted(options: argparse.Namespace) -> tuple[Prediction, str]:
    described: Description = model(options.model, sequence=options.sequence)
    cluster = with_settings(parse_cluster(options.cluster), dict(map(parse, options.settings)))
    given: dict[str, Any] = {
        name: value for name in (*LAYOUT, *CHOICES) if (value := getattr(options, name)) is not None
    }
    if {"tensor", "pipeline", "data", "microbatch"} <= set(given):
        given.setdefault("sequence_parallel", given["tensor"] > 1)
        if given.get("chunks", 1) > 1:
            given.setdefault("schedule", "interleaved")
        return predict(described, Plan(batch=options.batch, **given), cluster), ""
    made = search(described, options.batch, cluster, **given)
    return made.best, f" (best of {len(made.found)} layouts; {len(made.rejected)} are out)"


def parse_cluster(text: str) -> Topology:
    """`a100x32`: 32 GPUs in nodes as the preset has them; `mine.json`: as the file says; `mine.jsonx16`: both.

    Raises ValueError saying what is wrong.
    """
    parts = re.fullmatch(r"(.+?)x(\d+)", text)
    if is_file(text) and (parts is None or not is_file(parts[1])):
        return topology(text)
    if parts is None:
        raise ValueError(
            f"a cluster is a kind of GPU, x, and a number of GPUs, such as a100x32, or a file, such as mine.json; "
            f"got {text!r}"
        )
    name, gpus = SHORT.get(parts[1], parts[1]), int(parts[2])
    if name not in PRESETS and not is_file(name):
        raise ValueError(f"unknown kind {parts[1]!r}; there are: {', '.join((*SHORT, *PRESETS))}")
    node = topology(name)
    if gpus < 1 or (gpus > node.nproc_per_node and gpus % node.nproc_per_node):
        raise ValueError(f"{gpus} GPUs do not fill nodes of {node.nproc_per_node}")
    if gpus <= node.nproc_per_node:
        return replace(node, nnodes=1, nproc_per_node=gpus)
    return replace(node, nnodes=gpus // node.nproc_per_node)
