"""torchrun's own options where the lab starts the ranks: of a cell, `%%torchrun`, and of a file, `labkit launch`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.options import at_least_one, ranks_per_node, seconds, seconds_or_off


@dataclass(frozen=True)
class Nodes:
    """`--nnodes N` or `--nnodes MIN:MAX`."""

    least: int | None
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least is None else f"{self.least}:{self.most}"


def nodes(text: str) -> Nodes:
    """Parse `N` or `MIN:MAX`; a type for argparse."""
    least, colon, most = text.rpartition(":")
    parsed = Nodes(at_least_one(least) if colon else None, at_least_one(most))
    if parsed.least is not None and parsed.least > parsed.most:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX, at least MIN and at most MAX nodes, got {text!r}")
    return parsed


def count(text: str) -> int:
    """Parse a whole number of at least 0; a type for argparse."""
    return 0 if text == "0" else at_least_one(text)


def add_options(
    add: Callable[..., Any], program: str, refused: Mapping[tuple[str, ...], str], rendezvous: Callable[[str], str]
) -> None:
    """Add torchrun's options, and limits of time, with `add`, an `add_argument` of argparse.

    program: a word for what is launched: `cell`.
    refused: torchrun's options that mean nothing here, and why.
    rendezvous: parses the value of `--rdzv-backend`.
    """
    add("-n", "--nproc-per-node", type=ranks_per_node, metavar="N",
        help=f"ranks per node, for this {program}: a number, gpu, cpu (cores) or auto")  # fmt: skip
    add("--nnodes", type=nodes, metavar="N|MIN:MAX",
        help=f"number of nodes, for this {program}; with MIN:MAX, nodes may leave and join while it runs")  # fmt: skip
    add("--max-restarts", type=count, default=0, metavar="N",
        help="restart all ranks when one fails, at most N times")  # fmt: skip
    add("--master-port", type=at_least_one, metavar="PORT", help=f"MASTER_PORT, for {program}s that use it")
    add("--role", metavar="NAME", help=f"ROLE_NAME, for {program}s that use it")
    add("--standalone", action="store_true", help=argparse.SUPPRESS)
    add("--rdzv-backend", type=rendezvous, help=argparse.SUPPRESS)
    for names, why in refused.items():
        for name in names:
            add(name, action=_RefusedOption, why=why, nargs="?", help=argparse.SUPPRESS)
    add("--timeout", type=seconds, metavar="S", help="stop all ranks after S seconds")
    add("--hang-timeout", type=seconds_or_off, default=Job.hang_timeout, metavar="S",
        help="report a hang after S seconds without progress; 0 or off: never")  # fmt: skip
    add("--on-hang", choices=("stop", "wait"), default=Job.on_hang,
        help="on a hang: stop, with a table of which rank waits for which, or only show the table")  # fmt: skip


def asked_nodes(options: argparse.Namespace) -> Nodes | None:
    """The nodes that the options of `add_options` ask for; None for the cluster's. Raises `InvalidJob`."""
    if not options.standalone:
        return options.nnodes  # type: ignore[no-any-return]
    if options.nnodes and options.nnodes.most > 1:
        raise InvalidJob(f"--standalone: one node, but {options.nnodes} are asked for by --nnodes")
    return Nodes(None, 1)


def job_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_options` as fields of `Job`. Raises `InvalidJob`."""
    nnodes = asked_nodes(options)
    variables = {"MASTER_PORT": options.master_port, "ROLE_NAME": options.role}
    return {
        "nproc_per_node": options.nproc_per_node,
        "nnodes": nnodes.most if nnodes else None,
        "min_nnodes": nnodes.least if nnodes else None,
        "max_restarts": options.max_restarts,
        "environment": {name: str(value) for name, value in variables.items() if value},
        **{name: getattr(options, name) for name in ("timeout", "hang_timeout", "on_hang")},
    }


class _RefusedOption(argparse.Action):
    """A torchrun option that has no meaning here; reports why."""

    def __init__(self, *args: Any, why: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._why = why

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]}: {self._why}")
