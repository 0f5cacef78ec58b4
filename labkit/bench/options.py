"""`labkit bench scaling`: how DDP and FSDP scale, on real GPUs, on virtual ones, and as predicted.

Real ranks are used as far as this machine has GPUs; virtual ones and predictions are for all numbers. Each measurement
is appended to a file as soon as it is made. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal, get_args

from labkit.command_line.parser import CommandParser

ZERO: dict[str, int] = {"ddp": 0, "fsdp": 3}
"""Strategies, with the ZeRO stage by which `labkit.predict` knows them."""
VARIANTS = {"ddp+compression": "gradient_compression", "ddp+hierarchy": "hierarchical_allreduce"}
"""Variants of DDP, with the exercise that each needs besides."""
Precision = Literal["fp32", "tf32"]
"""Number format of matrix products and convolutions: of all columns, whatever torch's defaults are."""
FORMATS = {".md": "markdown", ".html": "html", ".json": "json", ".csv": "csv"}


def add_arguments(parser: CommandParser) -> None:
    """Add the kinds of benchmarks, each with its options."""
    parser.description = __doc__
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    scaling = kinds.add_parser("scaling", help="throughput, efficiency and memory as GPUs are added")
    scaling.add_argument(
        "--gpus", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="numbers of GPUs (default: 1 2 4 8)"
    )
    scaling.add_argument(
        "--strategies",
        nargs="+",
        default=["ddp"],
        choices=(*ZERO, *VARIANTS),
        help="strategies, of exercises 11 and 15; ddp with the compression of 13 or the hierarchy of 12 (default: ddp)",
    )
    scaling.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[32], metavar="N",
        help="samples of each GPU; with --strong of all together (default: 32)",
    )  # fmt: skip
    scaling.add_argument(
        "--model", default="resnet50",
        help="the model: resnet50, vit-b16, gpt-1.3b, mlp-784x256x10, ...; resnet50-products: a stand-in of as many "
        "parameters and FLOPs in a few matrix products, for many virtual GPUs (default: %(default)s)",
    )  # fmt: skip
    scaling.add_argument("--sequence", type=int, metavar="N", help="tokens of a sample, if not the model's own")
    scaling.add_argument(
        "--precision", choices=get_args(Precision), default="fp32",
        help="number format of products and convolutions, in all columns; tf32 needs GPUs (default: %(default)s)",
    )  # fmt: skip
    scaling.add_argument("--cluster", default="a100", metavar="KIND", help="virtual GPUs (default: %(default)s)")
    scaling.add_argument("--strong", action="store_true", help="let all GPUs share the batch (default: weak scaling)")
    scaling.add_argument(
        "--real", choices=("gpus", "cpu", "none"), default="gpus",
        help="real ranks: this machine's GPUs, or processes on its CPU (default: %(default)s)",
    )  # fmt: skip
    scaling.add_argument("--steps", type=int, metavar="N", help="steps of a repeat (default: 10; 2 if all is virtual)")
    scaling.add_argument(
        "--warmup", type=int, metavar="N", help="steps before those that count (default: 3; 1 if all is virtual)"
    )
    scaling.add_argument(
        "--repeats", type=int, metavar="N", help="repeats, for the spread (default: 3; 1 if all is virtual)"
    )
    scaling.add_argument("--samples", type=int, metavar="N", help="samples of an epoch: prints what it costs")
    scaling.add_argument("--price", type=float, default=0.0, metavar="DOLLARS", help="price of one GPU and hour")
    scaling.add_argument(
        "--to",
        type=Path,
        default=Path("scaling.jsonl"),
        metavar="FILE",
        help="append measurements there (default: %(default)s)",
    )
    scaling.add_argument(
        "--report",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"write the tables there; ends in {', '.join(FORMATS)}; repeatable",
    )


def require_valid(options: argparse.Namespace) -> None:
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
    if options.precision == "tf32" and options.real == "cpu":
        raise ValueError("--precision tf32 is of tensor cores: processes on a CPU compute in fp32")
    if options.price and options.samples is None:
        raise ValueError("--price needs --samples: dollars are of an epoch")
