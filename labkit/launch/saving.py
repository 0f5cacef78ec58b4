"""Write what runs a program without the lab: torchrun's command as a script, a job for Slurm, or one for Kubernetes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from labkit.clusters import Cluster, InvalidJob
from labkit.clusters.cluster import ManifestCluster, ModelledCluster, SrunCluster
from labkit.clusters.torchrun_command import TorchrunCommand, exercises_used
from labkit.launch.programs import Program


def save(
    path: Path,
    program: Program,
    command: TorchrunCommand,
    cluster: Cluster,
    force: bool,
    program_file: Path | None = None,
) -> list[Path]:
    """Write `path`, whose suffix selects the format; return what was written. Raises `InvalidJob` if it cannot be.

    program_file: file of the program, if it is to be written, too; a manifest contains it.
    """
    texts: dict[Path, str] = {}
    if path.suffix == ".sbatch":
        if not isinstance(cluster, SrunCluster):
            raise InvalidJob(f"--save {path}: a job for sbatch needs --cluster slurm and its options")
        texts[path] = sbatch_script(command, cluster)
    elif path.suffix in (".yaml", ".yml"):
        if not isinstance(cluster, ManifestCluster):
            raise InvalidJob(f"--save {path}: a manifest for kubectl needs --cluster kubernetes and its options")
        texts[path] = manifest(program, command, cluster)
    elif path.suffix == ".sh":
        texts[path] = shell_script(command, cluster)
    else:
        raise InvalidJob(f"--save {path}: the name must end in .sh, .sbatch or .yaml")
    if program_file is not None and path.suffix not in (".yaml", ".yml"):
        texts[program_file] = program.source
    for file in texts:
        if file.exists() and not force:
            raise InvalidJob(f"{file} exists; --force overwrites it")
    for file, text in texts.items():
        try:
            file.write_text(text)
            if file.suffix == ".sh":
                file.chmod(0o755)
        except OSError as error:
            raise InvalidJob(f"{file} cannot be written: {error.strerror}") from None
    return list(texts)


def shell_script(command: TorchrunCommand, cluster: Cluster) -> str:
    """Return a script for the machine, or for each of several: its arguments name the first one, and count them."""
    lines = ["#!/bin/sh"]
    if isinstance(cluster, ModelledCluster):
        lines.append(f"# Starts real processes; the {cluster.kind} cluster has modelled GPUs.")
    if isinstance(cluster, SrunCluster):
        return "\n".join([*lines, "# Run it within an allocation, as by salloc.", command.explained(cluster)]) + "\n"
    number = ""
    if command.nnodes.most > 1:
        lines.append(f"# Run it on each of {command.nnodes} nodes, with the name of one of them, the same on all.")
        lines.append("host=${1:?give the name of one of the nodes, the same on all}")
        if command.master_port:
            last = command.nnodes.most - 1
            lines.append(f"number=${{2:?give the number of this node: 0 on $host, and 1 to {last} on the others}}")
            number = '"$number"'
    lines += [f"export {name}={shlex.quote(value)}" for name, value in command.environment.items()]
    return "\n".join([*lines, " ".join(["exec", *command.words('"$host"', number, "labkit")])]) + "\n"


def sbatch_script(command: TorchrunCommand, cluster: SrunCluster) -> str:
    """Return a job for sbatch: `srun` starts torchrun once on each node, and they meet at the first."""
    several = command.nnodes.most > 1
    options = cluster.srun_options(command.nnodes.most)
    elastic = ["--no-kill"] if command.nnodes.least is not None else []
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH {shlex.quote(option)}" for option in [*options, *elastic]]
    lines.append("# The program's file and torchrun must be on all nodes, at the same paths.")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in command.environment.items()]
    ranks = command.nproc_per_node
    if isinstance(ranks, int):
        lines.append(f"export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / {ranks}))")
    if several:
        lines.append('first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    if several and not command.master_port:
        lines.append("port=$((20000 + SLURM_JOB_ID % 10000))  # two jobs may share a node")
    # sbatch's number of cores is not passed on to srun
    srun = ["srun", '--cpus-per-task="$SLURM_CPUS_PER_TASK"', *elastic]
    words = command.words('"$first"', '"$SLURM_NODEID"', '"$SLURM_JOB_ID"', '"$port"')
    if several and command.master_port:  # each node's own shell knows its number
        lines[-1] = f"export {lines[-1]}"
        words = ["sh", "-c", shlex.quote(" ".join(words))]
    return "\n".join([*lines, " ".join([*srun, *words])]) + "\n"


def manifest(program: Program, command: TorchrunCommand, cluster: ManifestCluster) -> str:
    """Return Kubernetes' objects for `kubectl apply`. Raises `InvalidJob` if pods could not run the program."""
    if command.nnodes.least is not None:
        raise InvalidJob("--nnodes MIN:MAX: a Job of Kubernetes has a fixed number of pods")
    if used := exercises_used(program.source):
        raise InvalidJob(
            f"the program imports your {', '.join(used)}, which a manifest does not contain: leave out --save"
        )
    file = Path(command.program[0]).name if program.script.module is None else None

    def words(host: str, number: str, folder: str) -> list[str]:
        mounted = command if file is None else replace(command, program=(f"{folder}/{file}", *command.program[1:]))
        # a manifest has words as they are, not as a shell reads them
        return [part for word in mounted.words(host, number, "labkit") for part in shlex.split(word)]

    name = Path(file).stem if file is not None else command.program[1].rpartition(".")[2]
    return cluster.torchrun_manifest(name, words, {} if file is None else {file: program.source})
