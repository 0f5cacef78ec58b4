"""The torchrun command that does what the lab does, for one node, or for each of several."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.clusters import Cluster
from labkit.clusters.cluster import ModelledCluster, SrunCluster
from labkit.clusters.launch_options import Nodes

_PORT = 29500


@dataclass(frozen=True)
class TorchrunCommand:
    """torchrun with its options, and the file that it runs."""

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
            if self.master_port:  # each node must be told which one it is
                lines.append(f"# NUMBER is 0 on HOST, and 1 to {self.nnodes.most - 1} on the others")
        return "\n".join([*lines, self.line])

    def words(self, host: str, number: str, identifier: str) -> list[str]:
        """Return the command's words, as a shell reads them, without the variables of the environment.

        host: the first node. number: how a node's own number is written. identifier: of the rendezvous.
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
            words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{_PORT}", f"--rdzv-id={identifier}"]
        words.append(f"--nproc-per-node={self.nproc_per_node}")
        if self.max_restarts:
            words.append(f"--max-restarts={self.max_restarts}")
        if self.role:
            words.append(f"--role={shlex.quote(self.role)}")
        return [*words, shlex.quote(self.file)]

    def _srun(self, options: Sequence[str]) -> str:
        first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        inner = " ".join(self.words(first, "$SLURM_NODEID", "$SLURM_JOB_ID"))
        return f"srun {shlex.join(options)} sh -c {shlex.quote(inner)}"
