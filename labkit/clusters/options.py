"""Options that several kinds of clusters take, and types for the values of options."""

from __future__ import annotations

import argparse
from typing import get_args

from labkit.clusters.job import GpusOrCores
from labkit.clusters.kind import Option


def at_least_one(text: str) -> int:
    """Parse a number of ranks or nodes; a type for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def ranks_per_node(text: str) -> int | str:
    """Parse a number, or one of torchrun's words for it."""
    return text if text in get_args(GpusOrCores) else at_least_one(text)


def seconds(text: str) -> float:
    """Parse a time limit in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return value


def seconds_or_off(text: str) -> float | None:
    """Parse a time limit in seconds; None for `0` or `off`."""
    return None if text in ("0", "off") else seconds(text)


def duration(text: str) -> float:
    """Parse a time: seconds, or `90s`, `10m`, `2h`."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 10m or 2h, got {text!r}")
    return value


NNODES = Option("--nnodes", "number of nodes", at_least_one, "N")
NPROC_PER_NODE = Option("--nproc-per-node", "ranks on each node; gpu, cpu, auto", ranks_per_node, "N", short="-n")
BACKEND = Option("--backend", "gloo or nccl", takers="real ranks")
GPUS_PER_NODE = Option("--gpus-per-node", "GPUs per node", at_least_one, "N")
