"""The job script that holds the nodes, and the command that starts the lab's agent on each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from labkit.clusters.job import InvalidJob

LOOK_SECONDS = 30
"""Time between the job's checks whether it still has steps."""


@dataclass(frozen=True)
class ResourceRequest:
    """Request to Slurm. Names and values are those of sbatch's options."""

    nnodes: int
    nproc_per_node: int
    """Ranks on each node: a rank is a task in Slurm's terms."""
    cpus_per_task: int = 1
    gpus_per_node: int | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    """Time limit of the whole allocation in sbatch's format: minutes, or `HH:MM:SS`; None: the partition's own."""
    qos: str | None = None
    constraint: str | None = None
    sbatch_options: tuple[str, ...] = ()
    """More options of sbatch: `--reservation=course`."""

    def __post_init__(self) -> None:
        for name in ("nnodes", "gpus_per_node", "nproc_per_node", "cpus_per_task"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidJob(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("partition", "account", "time", "qos", "constraint"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value or "\n" in value):
                raise InvalidJob(f"{name} must be a text of one line, got {value!r}")
        for option in self.sbatch_options:
            if not option.startswith("-") or "\n" in option:
                raise InvalidJob(f"sbatch_options must be options of sbatch (--name=value), got {option!r}")

    def options(self) -> list[str]:
        """sbatch's options.

        A job whose node fails is not restarted: the notebook would not know of it. It is not ended either, as a run
        with `--nnodes MIN:MAX` may go on with the others; after any other run the notebook ends it.
        """
        options = [
            "--job-name=labkit",
            f"--nodes={self.nnodes}",
            f"--ntasks-per-node={self.nproc_per_node}",
            f"--cpus-per-task={self.cpus_per_task}",
        ]
        for name in ("gpus_per_node", "partition", "account", "time", "qos", "constraint"):
            value = getattr(self, name)
            if value is not None:
                options.append(f"--{name.replace('_', '-')}={value}")
        return [*options, *self.sbatch_options, "--no-requeue", "--no-kill", "--output=/dev/null"]


def job_script(asked: ResourceRequest) -> str:
    """The script of a job that holds the nodes as long as it has steps.

    The notebook cancels the job when it no longer needs the nodes. The script is for a notebook that could not: its
    machine is gone, or it ended while the job was queued.
    """
    directives = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in asked.options())
    return f"""\
#!/bin/sh
{directives}

# Holds the nodes while a notebook runs cells on them, which are steps of this job.
# When there has been none for {2 * LOOK_SECONDS} seconds, the notebook is gone.
quiet=0
while [ "$quiet" -lt 2 ]; do
    sleep {LOOK_SECONDS}
    steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i) || continue
    case $steps in
        *"$SLURM_JOB_ID".[0-9]*) quiet=0 ;;
        *) quiet=$((quiet + 1)) ;;
    esac
done
"""


def step_command(job_id: str, node: int, command: list[str]) -> list[str]:
    """The srun command that runs `command` on node number `node` of the job, connected to this program's pipes.

    Each node has a step of its own: with several tasks in one step, srun mixes up lines of more than a kilobyte.
    """
    return [
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--relative={node}",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        *command,
    ]
