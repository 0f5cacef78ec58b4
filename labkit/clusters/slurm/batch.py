"""Batch jobs that run a program of the lab on their first node, with all of their nodes for its ranks."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from labkit.clusters.cluster import BatchState, OnState
from labkit.clusters.job import InvalidJob
from labkit.clusters.slurm import clients
from labkit.clusters.slurm.script import ResourceRequest

_PATIENCE_SECONDS = 15.0
"""Time for the program to stop its ranks."""
_INDEX = '"$SLURM_ARRAY_TASK_ID"'


def batch_script(
    asked: ResourceRequest, command: Sequence[str], name: str, output: Path, array: str | None = None
) -> str:
    """Return the script of a job that runs `command` on its first node.

    array: indexes as sbatch takes them; `%a` in `command` and `output` is the index.
    """
    left_out = ("--job-name=", "--output=")
    options = [option for option in asked.options() if not option.startswith(left_out)]
    options += [f"--job-name={name}", f"--output={output}", "--open-mode=append"]
    if array is not None:
        options.append(f"--array={array}")
    words = [_INDEX.join(map(shlex.quote, word.split("%a"))) if array else shlex.quote(word) for word in command]
    directives = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    return f"#!/bin/sh\n{directives}\n\nexec {' '.join(words)}\n"


def submit(script: str) -> str:
    """Submit a script and return the job's number. Raises `InvalidJob` if Slurm refuses it."""
    done = subprocess.run(
        ["sbatch", "--parsable"],
        env=clients.submitting_environment(),
        input=script,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise InvalidJob(
            f"Slurm refuses the job: {clients.said(done.stderr)}. This cluster has: {clients.partitions()}"
        )
    return done.stdout.strip().partition(";")[0]


def batch_state(batch_id: str) -> BatchState:
    """Return the state of a job. Raises `InvalidJob` if Slurm does not answer."""
    state = clients.job_state(batch_id)
    if state.waits:
        why = state.why_never() or state.why_it_waits()
        return BatchState("queued", f"Slurm job {batch_id} waits" + (f": {why}" if why else ""))
    if state.runs or state.state == "COMPLETING":
        return BatchState("running", f"running on {state.nodes}")
    ending = state.why_it_ended("").format(job=batch_id, limit="")
    return BatchState("ended", ending or f"Slurm job {batch_id}: {state.state.lower()}")


def cancel(batch_id: str) -> None:
    """End a job; its program may stop its ranks first. Returns when it has ended. Raises `InvalidJob` as `ask` does."""
    limit = time.monotonic() + _PATIENCE_SECONDS
    if clients.job_state(batch_id).runs:
        clients.ask("scancel", "--quiet", "--batch", "--signal=TERM", batch_id)
        while batch_state(batch_id).phase != "ended" and time.monotonic() < limit:
            time.sleep(0.2)
    clients.ask("scancel", "--quiet", batch_id)
    while batch_state(batch_id).phase != "ended":
        time.sleep(0.2)


class CurrentAllocation:
    """The nodes of the batch job in which this process runs. Like `Allocation`, but it ends with the job."""

    def __init__(self, asked: ResourceRequest) -> None:
        self.asked = asked
        self.job_id = os.environ["SLURM_JOB_ID"]
        self.nodes: list[str] = []

    def state(self) -> clients.JobState:
        """State of the job."""
        return clients.job_state(self.job_id)

    def wait(self, on_state: OnState | None = None) -> None:
        """Look up the nodes. Raises `InvalidJob` if the job has fewer than requested."""
        names = clients.node_names(os.environ["SLURM_JOB_NODELIST"])
        if len(names) < self.asked.nnodes:
            raise InvalidJob(f"Slurm job {self.job_id} has {len(names)} nodes, but {self.asked.nnodes} are asked for")
        self.nodes = names[: self.asked.nnodes]

    def release(self) -> None:
        """Do nothing: the nodes belong to the batch job."""
