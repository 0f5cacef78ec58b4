"""The Slurm cluster as a kind of clusters."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from labkit.clusters.cluster import Cluster
from labkit.clusters.job import InvalidJob
from labkit.clusters.kind import ClusterKind, Option
from labkit.clusters.options import BACKEND, GPUS_PER_NODE, NNODES, NPROC_PER_NODE, at_least_one, duration
from labkit.command_line.finding import Finding, State


def _cluster() -> type:
    from labkit.clusters.slurm.cluster import SlurmCluster

    return SlurmCluster


def _make(**options: Any) -> Cluster:
    from labkit.clusters.slurm.cluster import slurm

    return slurm(**options)


def _examine() -> Finding:
    from labkit.clusters.slurm import clients

    if shutil.which("srun") is None:
        return Finding(State.MISSING, "no srun", "not needed on a laptop")
    try:
        partitions = clients.partitions()
    except InvalidJob as error:
        return Finding(State.MISSING, str(error), "not needed on a laptop; elsewhere, ask the cluster's administrator")
    done = subprocess.run(["srun", "--version"], capture_output=True, text=True, timeout=20)
    version = (done.stdout or done.stderr).strip().split("\n")[0].split()[-1]
    return Finding(State.OK, f"{version}, {partitions}")


KIND = ClusterKind(
    name="slurm",
    cluster=_cluster,
    make=_make,
    options=(
        NNODES,
        NPROC_PER_NODE,
        BACKEND,
        GPUS_PER_NODE,
        Option("--partition", "as for sbatch, like the next six", metavar="NAME"),
        Option("--account", "account to charge", metavar="NAME"),
        Option("--time", "time limit for holding the nodes, minutes or HH:MM:SS", metavar="LIMIT"),
        Option("--cpus-per-task", "cores per rank", at_least_one, "N"),
        Option("--qos", "quality of service", metavar="NAME"),
        Option("--constraint", "features that nodes must have", metavar="FEATURES"),
        Option(
            "--sbatch",
            'any other sbatch option, "--sbatch=--reservation=course"',
            metavar="OPTION",
            keyword="sbatch_options",
            repeatable=True,
        ),
        Option("--keep", "keep the nodes this long for the next cell, 10m", duration, "TIME"),
        Option("--python", "the interpreter on the nodes, if its path differs", metavar="PATH"),
    ),
    example="--partition gpu --nnodes 2 --gpus-per-node 4 --time 30 --keep 10m",
    title="Slurm",
    examine=_examine,
)
