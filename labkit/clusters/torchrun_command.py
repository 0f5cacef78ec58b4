"""The torchrun command that does what the lab does, for one node, or for each of several."""

from __future__ import annotations

import argparse
import ast
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.catalogue import OWN_ROOT
from labkit.clusters import Cluster, GpusOrCores, InvalidJob
from labkit.clusters.cluster import CoreSharingCluster, ModelledCluster, SrunCluster
from labkit.clusters.launch_options import Nodes, asked_nodes

_PORT = "29500"


@dataclass(frozen=True)
class TorchrunCommand:
    """torchrun with its options, and the program that it runs."""

    program: tuple[str, ...]
    """The file, or -m and the module, and the program's own arguments."""
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
        return " ".join([*variables, *self.words("HOST", "NUMBER", "a-cell")])

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
            if self.master_port:  # each node needs its own number
                lines.append(f"# NUMBER is 0 on HOST, and 1 to {self.nnodes.most - 1} on the others")
        return "\n".join([*lines, self.line])

    def words(self, host: str, number: str, identifier: str, port: str = _PORT) -> list[str]:
        """Return the command's words, as a shell reads them, without the variables of the environment.

        host: the first node. number: how a node's own number is written. identifier, port: of the rendezvous.
        """
        words = ["torchrun"]
        if self.nnodes.most > 1:
            words.append(f"--nnodes={self.nnodes}")
        if self.master_port:  # the rendezvous c10d chooses the port itself
            words += [f"--node-rank={number}", f"--master-addr={host}"] if self.nnodes.most > 1 else []
            words.append(f"--master-port={self.master_port}")
        elif self.nnodes.most == 1:
            words.append("--standalone")
        else:
            words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", f"--rdzv-id={identifier}"]
        words.append(f"--nproc-per-node={self.nproc_per_node}")
        if self.max_restarts:
            words.append(f"--max-restarts={self.max_restarts}")
        if self.role:
            words.append(f"--role={shlex.quote(self.role)}")
        return [*words, *map(shlex.quote, self.program)]

    def _srun(self, options: Sequence[str]) -> str:
        first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        inner = " ".join(self.words(first, "$SLURM_NODEID", "$SLURM_JOB_ID"))
        return f"srun {shlex.join(options)} sh -c {shlex.quote(inner)}"


def torchrun_command(
    program: tuple[str, ...], source: str, options: argparse.Namespace, cluster: Cluster
) -> TorchrunCommand:
    """Return the command that corresponds to `launch_options`. Raises `InvalidJob` if there is none.

    program: see `TorchrunCommand`; source: its text.
    """
    nnodes = asked_nodes(options) or Nodes(None, cluster.nnodes)
    nproc_per_node = options.nproc_per_node or cluster.nproc_per_node
    if options.master_port and nnodes.least is not None:
        raise InvalidJob("where nodes come and go, torchrun chooses MASTER_PORT: leave out --master-port")
    return TorchrunCommand(
        program=program,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        max_restarts=options.max_restarts,
        environment=environment(source, cluster, nnodes, nproc_per_node),
        master_port=options.master_port,
        role=options.role,
    )


def exercises_used(source: str) -> list[str]:
    """Names that a program imports from labkit.exercises."""
    exercises: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith("labkit.exercises."):
            path = node.module.split(".")[2:]
            exercises.update(dict.fromkeys(path[:1] or [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
            exercises.update({path[2]: None for path in paths if path[:2] == ["labkit", "exercises"] and len(path) > 2})
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "labkit.exercises":
            exercises[node.attr] = None
    return list(exercises)


def environment(source: str, cluster: Cluster, nnodes: Nodes, nproc_per_node: int | GpusOrCores) -> dict[str, str]:
    """Return variables that ranks of `cluster` have, and torchrun's would not. source: text of the program."""
    variables: dict[str, str] = {}
    if isinstance(cluster, CoreSharingCluster) and nnodes.most == 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(cluster.threads_per_rank(nproc_per_node))
    names = ("LABKIT_ROOT", "LABKIT_WORKSPACE", OWN_ROOT) if exercises_used(source) else ()
    return {**variables, **{name: os.environ[name] for name in names if name in os.environ}}
