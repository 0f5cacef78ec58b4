"""The options of `labkit launch`: torchrun's, those of `%cluster`, and the words for the program after `--`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.clusters import Cluster, launch_options
from labkit.clusters import kinds as cluster_kinds
from labkit.command_line.parser import CommandParser

_BEFORE_KIND = "--cluster "
_ELSEWHERE = "use this with torchrun itself: --print-command shows its command"
_REFUSED = {
    ("--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr", "--node-rank", "--local-addr"): (
        f"the cluster sets up the rendezvous of the ranks; {_ELSEWHERE}"
    ),
    ("--log-dir", "--logs-specs", "--tee", "-t", "--redirects", "-r"): (
        "the output of all ranks is shown; redirect it with > and 2>, as that of any command"
    ),
    ("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"): (
        "the output of all ranks is shown, equal lines once"
    ),
    ("--monitor-interval", "--start-method", "--no-python", "--run-path"): (
        f"ranks are forked, with torch imported, and run Python; {_ELSEWHERE}"
    ),
    ("--signals-to-handle", "--shutdown-timeout"): (
        "Ctrl-C and SIGTERM stop the ranks, and they have 5 s to save if they handle SIGTERM"
    ),
    ("--event-log-handler",): "starts and ends of ranks are printed as notes",
    ("--numa-binding",): f"ranks share the cores of their node; {_ELSEWHERE}",
    ("--virtual-local-rank",): "LOCAL_RANK is a rank's number in its node, and its GPU is cuda:LOCAL_RANK",
}
"""torchrun's options that mean nothing here, and why."""


def parser() -> CommandParser:
    """Return the parser of the options before `--`."""
    made = CommandParser(prog="labkit launch")
    add_arguments(made)
    return made


def add_arguments(made: CommandParser) -> None:
    """Add the options before `--`."""
    made.usage = "labkit launch [options] FILE.py|NOTEBOOK.ipynb|-m MODULE|--config FILE.yaml [-- ARGUMENTS...]"
    made.description = (
        "Run a program on every rank of a cluster, as torchrun does. Lines that ranks print are shown as [rank] line, "
        "equal lines once. Exit status: 0 if all ranks succeed, 1 if one fails, 130 after Ctrl-C."
    )
    made.allow_abbrev = False
    made.set_defaults(passed_on=[])  # `parse` refuses unknown options
    add = made.add_argument
    add(
        "file",
        nargs="?",
        metavar="FILE",
        help="the program, whose text is sent to the ranks; or a notebook, whose cells are run",
    )
    add("-m", "--module", metavar="MODULE", help="instead of a file: a module, as python -m runs it")
    add("--config", type=Path, metavar="FILE.yaml", help="instead of a file: what to train, and where, as a file says")
    known = cluster_kinds.registered()
    add("--cluster", metavar="KIND", help=f"{', '.join(known)} (default: local)")
    launch_options.add_options(add, "program", _REFUSED, _c10d)
    add("--detach", action="store_true",
        help="start the program and return: labkit jobs, labkit logs and labkit stop find it again")  # fmt: skip
    add("--array", metavar="INDEXES", help="start one job for each index, with --detach on slurm: 0-3 or 0-99%%4; "
        "%%a in the program's arguments is the index")  # fmt: skip
    add("--dry-run", action="store_true",
        help="show what would be submitted to the cluster, and submit nothing")  # fmt: skip
    add("--save", type=Path, metavar="run.sh|job.sbatch|job.yaml",
        help="write a script, or a job for sbatch or kubectl, that runs the program without the lab")  # fmt: skip
    add("--force", action="store_true", help="--save may overwrite a file")
    add("--print-command", action="store_true", help="show the torchrun command instead of running the program")
    group = made.add_argument_group("options of the cluster, as for %cluster")
    taken = {action.dest for action in made._actions}
    for option, takers in cluster_kinds.options().values():
        if option.name not in taken:
            named = dataclasses.replace(option, flag=f"--{option.name}") if option.is_positional else option
            cluster_kinds.add_option(group.add_argument, named, takers if len(takers) < len(known) else ())


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after `labkit launch`; those for the program are `options.arguments`. Exits for bad options."""
    own, arguments = list(words), []
    if "--" in own:
        place = own.index("--")
        own, arguments = own[:place], own[place + 1 :]
    made = parser()
    options, unknown = made.parse_known_intermixed_args([_dashed(word) for word in own])
    if unknown:
        kind = "option" if unknown[0].startswith("-") else "argument"
        made.error(f"unknown {kind} {unknown[0]}{made.suggestion(unknown[0])}; words for the program go after --")
    if sum(given is not None for given in (options.file, options.module, options.config)) != 1:
        made.error("give either a FILE, or -m MODULE, or --config FILE")
    if options.array is not None and not options.detach:
        made.error("--array needs --detach")
    if options.detach and (options.dry_run or options.print_command or options.save is not None):
        made.error("--detach runs the program: leave out --dry-run, --print-command and --save")
    options.arguments = tuple(arguments)
    return options


def cluster(options: argparse.Namespace) -> Cluster:
    """Make the cluster that the options name. Raises `InvalidJob` if they do not fit."""
    name, given = _chosen(options)
    return cluster_kinds.make(name, given, _BEFORE_KIND)


def require_fit(options: argparse.Namespace) -> None:
    """Raise `InvalidJob` for a kind of cluster that does not exist or does not take an option. Imports no torch."""
    name, given = _chosen(options)
    cluster_kinds.require_fit(name, given, _BEFORE_KIND)


def _chosen(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The kind of cluster, and the values of its options."""
    known = cluster_kinds.options()
    given = {name: value for name, value in vars(options).items() if name in known and value is not None}
    given.pop("timeout", None)  # the job has it
    name = options.cluster or "local"
    kind = cluster_kinds.registered().get(name)
    nodes = launch_options.asked_nodes(options)
    given.pop("nnodes", None)
    if nodes is not None:
        given["nnodes"] = nodes.most
    if options.nproc_per_node is None and kind is not None and kind.counts_ranks:
        given["nproc_per_node"] = 1  # torchrun's default
    if isinstance(options.nproc_per_node, str) and kind is not None and not kind.counts_ranks:
        del given["nproc_per_node"]  # the cluster itself counts its GPUs, or says that it cannot
    return name, given


def _dashed(word: str) -> str:
    """torchrun's options may be written with _ too."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _c10d(text: str) -> str:
    if text != "c10d":
        raise argparse.ArgumentTypeError(f"ranks use the c10d rendezvous, got {text!r}; {_ELSEWHERE}")
    return text
