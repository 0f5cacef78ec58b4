"""torchrun's own options for `%%torchrun`, and the reverse: save a cell as a script and show its torchrun command."""

from __future__ import annotations

import argparse
import ast
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from labkit.clusters import Cluster
from labkit.clusters.cluster import CoreSharingCluster, ModelledCluster, SrunCluster
from labkit.clusters.options import at_least_one, ranks_per_node
from labkit.notebook.magics import Magic

_PORT = 29500
_ELSEWHERE = "use this with torchrun itself: --print-command shows the command for this cell"
_REFUSED = {
    ("--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr", "--node-rank", "--local-addr"): (
        f"the cluster sets up the rendezvous of a cell's ranks; {_ELSEWHERE}"
    ),
    ("--log-dir", "--logs-specs", "--tee", "-t", "--redirects", "-r"): (
        "each rank's output is always shown and saved in its own file: run.logs"
    ),
    ("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"): (
        "all ranks' output is shown, equal lines once; run.logs has each rank's"
    ),
    ("--monitor-interval", "--start-method", "--module", "-m", "--no-python", "--run-path"): (
        f"ranks are forked, with torch imported, and run this cell; {_ELSEWHERE}"
    ),
    ("--signals-to-handle", "--shutdown-timeout"): (
        "the kernel's interrupt stops a cell's ranks, and they have 5 s to save if they handle SIGTERM"
    ),
    ("--event-log-handler",): "starts and ends of ranks are in the cell's Run: run.ranks, run.notes",
    ("--numa-binding",): f"a cell's ranks share the cores of their node; {_ELSEWHERE}",
    ("--virtual-local-rank",): "LOCAL_RANK is a rank's number in its node, and its GPU is cuda:LOCAL_RANK",
}
"""torchrun's options that mean nothing in a cell, and why."""


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
    found = Nodes(at_least_one(least) if colon else None, at_least_one(most))
    if found.least is not None and found.least > found.most:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX, at least MIN and at most MAX nodes, got {text!r}")
    return found


def count(text: str) -> int:
    """Parse a whole number of at least 0; a type for argparse."""
    return 0 if text == "0" else at_least_one(text)


def add_options(magic: Magic) -> None:
    """torchrun's own options, and `--save` and `--print-command`."""
    magic.option(
        "-n", "--nproc-per-node", type=ranks_per_node, metavar="N",
        help="ranks per node, for this cell: a number, gpu, cpu (cores) or auto",
    )  # fmt: skip
    magic.option(
        "--nnodes", type=nodes, metavar="N|MIN:MAX",
        help="number of nodes, for this cell; with MIN:MAX, nodes may leave and join while it runs",
    )  # fmt: skip
    magic.option(
        "--max-restarts", type=count, default=0, metavar="N",
        help="restart all ranks when one fails, at most N times",
    )  # fmt: skip
    magic.option("--master-port", type=at_least_one, metavar="PORT", help="MASTER_PORT, for cells that use it")
    magic.option("--role", metavar="NAME", help="ROLE_NAME, for cells that use it")
    magic.option("--standalone", action="store_true", help=argparse.SUPPRESS)
    magic.option("--rdzv-backend", type=_c10d, help=argparse.SUPPRESS)
    for names, why in _REFUSED.items():
        for name in names:
            magic.option(name, action=_RefusedOption, why=why, nargs="?", help=argparse.SUPPRESS)
    magic.option(
        "--save", type=Path, metavar="FILE.py", help="write the cell as a script for torchrun instead of running it"
    )
    magic.option("--force", action="store_true", help="--save may overwrite a file")
    magic.option(
        "--print-command", action="store_true", help="show the torchrun command for this cell instead of running it"
    )


def _nodes(options: argparse.Namespace) -> Nodes | None:
    if not options.standalone:
        return options.nnodes  # type: ignore[no-any-return]
    if options.nnodes and options.nnodes.most > 1:
        raise UsageError(f"%%torchrun: --standalone: one node, but {options.nnodes} are asked for by --nnodes")
    return Nodes(None, 1)


def job_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_options` as fields of `Job`."""
    nnodes = _nodes(options)
    variables = {"MASTER_PORT": options.master_port, "ROLE_NAME": options.role}
    return {
        "nproc_per_node": options.nproc_per_node,
        "nnodes": nnodes.most if nnodes else None,
        "min_nnodes": nnodes.least if nnodes else None,
        "max_restarts": options.max_restarts,
        "environment": {name: str(value) for name, value in variables.items() if value},
    }


def instead_of_running(options: argparse.Namespace, cluster: Cluster, cell: str, number: int) -> bool:
    """Save the cell or show its command, if requested; return False when it should run. `number`: In[number]."""
    if options.save is None and not options.print_command:
        return False
    command = _Command(
        file=str(options.save or f"cell_{number}.py"),
        nnodes=_nodes(options) or Nodes(None, cluster.nnodes),
        nproc_per_node=options.nproc_per_node or cluster.nproc_per_node,
        max_restarts=options.max_restarts,
        environment=_environment(options, cluster, cell),
        master_port=options.master_port,
        role=options.role,
    )
    if options.master_port and command.nnodes.least is not None:
        raise UsageError("%%torchrun: where nodes come and go, torchrun chooses MASTER_PORT: leave out --master-port")
    if options.save is not None:
        _save(options.save, cell, number, command, options.force)
    if options.print_command:
        if options.save is None:
            print(f"# the cell as a script: %%torchrun --save {command.file}")
        print(command.explained(cluster))
    return True


def _save(path: Path, cell: str, number: int, command: _Command, force: bool) -> None:
    if path.suffix != ".py":
        raise UsageError(f"%%torchrun: --save needs the name of a Python file, got {str(path)!r}")
    if path.exists() and not force:
        raise UsageError(f"%%torchrun: {path} exists; --force overwrites it")
    used = exercises_used(cell)
    needs = f"It needs {'torch and labkit' if used else 'torch'}."
    if used:
        needs += (
            f" Your {', '.join(used)}: labkit.exercises looks in workspace/ of the\ncourse's folder; to use other"
            " folders, set LABKIT_WORKSPACE (your modules) and LABKIT_ROOT (the course)."
        )
    text = f'"""In[{number}] of a notebook. To run it:\n\n    {command.line}\n\n{needs}\n"""\n\n{cell.strip()}\n'
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"%%torchrun: {path} cannot be written: {error.strerror}") from None
    print(f"saved as {path}")


def exercises_used(cell: str) -> list[str]:
    """Names that a cell imports from labkit.exercises."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(cell)):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith("labkit.exercises."):
            path = node.module.split(".")[2:]
            found.update(dict.fromkeys(path[:1] or [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
            found.update({path[2]: None for path in paths if path[:2] == ["labkit", "exercises"] and len(path) > 2})
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "labkit.exercises":
            found[node.attr] = None
    return list(found)


def _environment(options: argparse.Namespace, cluster: Cluster, cell: str) -> dict[str, str]:
    """Environment variables that a cell's ranks have and torchrun's would not."""
    found: dict[str, str] = {}
    count = options.nproc_per_node or cluster.nproc_per_node
    one_node = (_nodes(options) or Nodes(None, cluster.nnodes)).most == 1
    if isinstance(cluster, CoreSharingCluster) and one_node and "OMP_NUM_THREADS" not in os.environ:
        found["OMP_NUM_THREADS"] = str(cluster.threads_per_rank(count))
    names = ("LABKIT_ROOT", "LABKIT_WORKSPACE") if exercises_used(cell) else ()
    return {**found, **{name: os.environ[name] for name in names if name in os.environ}}


@dataclass(frozen=True)
class _Command:
    file: str
    nnodes: Nodes
    nproc_per_node: int | str
    max_restarts: int
    environment: dict[str, str]
    master_port: int | None = None
    role: str | None = None

    @property
    def line(self) -> str:
        """The command for one node, or for each of several; the user fills in HOST, and NUMBER if it is there."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, *self._words("HOST", "NUMBER", "a-cell")])

    def explained(self, cluster: Cluster) -> str:
        """The command with a comment on where to run it."""
        if isinstance(cluster, SrunCluster):
            return self._srun(cluster.srun_options(self.nnodes.most))
        lines = []
        if isinstance(cluster, ModelledCluster):
            lines.append(f"# starts real processes; the {cluster.kind} cluster has modelled GPUs:")
        if self.nnodes.most > 1:
            lines.append(
                f"# run on each of {self.nnodes} nodes; HOST is the name of one of them, the same on all. "
                "On this machine: localhost, in one terminal per node"
            )
            if self.master_port:  # each node must be told which one it is
                lines.append(f"# NUMBER is 0 on HOST, and 1 to {self.nnodes.most - 1} on the others")
        return "\n".join([*lines, self.line])

    def _words(self, host: str, number: str, identifier: str) -> list[str]:
        """host: the first node. number: what a node's own number is written as."""
        words = ["torchrun"]
        if self.nnodes.most > 1:
            words.append(f"--nnodes={self.nnodes}")
        if self.master_port:  # the rendezvous c10d chooses the port itself
            words += [f"--node-rank={number}", f"--master-addr={host}"] if self.nnodes.most > 1 else []
            words.append(f"--master-port={self.master_port}")
        elif self.nnodes.most == 1:
            words.append("--standalone")
        else:
            words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{_PORT}", f"--rdzv-id={identifier}"]
        words.append(f"--nproc-per-node={self.nproc_per_node}")
        if self.max_restarts:
            words.append(f"--max-restarts={self.max_restarts}")
        if self.role:
            words.append(f"--role={shlex.quote(self.role)}")
        return [*words, shlex.quote(self.file)]

    def _srun(self, options: Sequence[str]) -> str:
        first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        inner = " ".join(self._words(first, "$SLURM_NODEID", "$SLURM_JOB_ID"))
        return f"srun {shlex.join(options)} sh -c {shlex.quote(inner)}"


class _RefusedOption(argparse.Action):
    """A torchrun option that has no meaning here; reports why."""

    def __init__(self, *args: Any, why: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._why = why

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]}: {self._why}")


def _c10d(text: str) -> str:
    if text != "c10d":
        raise argparse.ArgumentTypeError(f"ranks of a cell use the c10d rendezvous, got {text!r}; {_ELSEWHERE}")
    return text
