"""Slurm's own command-line clients, such as squeue, and descriptions of their output."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.clusters.job import InvalidJob

_LIMIT_SECONDS = 60.0
_FIELDS = "%T|%S|%P|%N|%r"

_REASONS = {
    "Priority": "other jobs come first",
    "Resources": "for nodes to become free",
    "Dependency": "for another job to end",
    "Licenses": "for licences",
    "Reservation": "for its reservation to begin",
    "BeginTime": "for the time at which it may begin",
    "JobArrayTaskLimit": "for other tasks of its array",
    "QOSMaxJobsPerUserLimit": "for your other jobs to end: the QOS allows no more at a time",
    "AssocMaxJobsLimit": "for your account's other jobs to end: it may run no more at a time",
    "ReqNodeNotAvail": "nodes are down, drained or reserved",
    "JobHeldUser": "it is held: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionDown": "the partition takes no jobs now",
    "PartitionInactive": "the partition takes no jobs now",
}
_NEVER = {
    "PartitionNodeLimit": "the partition has fewer nodes, or allows fewer",
    "PartitionTimeLimit": "--time is more than the partition allows",
    "PartitionConfig": "the partition has fewer nodes, smaller ones, or allows less --time",
    "BadConstraints": "no nodes have what is asked for",
    "InvalidAccount": "the account is not known",
    "InvalidQOS": "the QOS is not known",
    "AccountNotAllowed": "the account may not use this partition",
    "QOSNotAllowed": "the QOS may not be used here",
    "QOSMaxNodePerUserLimit": "the QOS allows fewer nodes",
    "QOSMaxWallDurationPerJobLimit": "the QOS allows less --time",
    "AssocMaxWallDurationPerJobLimit": "your account allows less --time",
    "AssocMaxNodePerJobLimit": "your account allows fewer nodes",
}


_ENDINGS = {
    "TIMEOUT": "job {job} reached its time limit, --time {limit}",
    "CANCELLED": "job {job} was cancelled with scancel, or by an administrator",
    "NODE_FAIL": "Slurm ended job {job} because one of its nodes failed",
    "PREEMPTED": "Slurm ended job {job} in favour of another one (preempted)",
    "OUT_OF_MEMORY": "job {job} used more memory than it asked for: --sbatch --mem=...",
    "DEADLINE": "job {job} reached its deadline",
    "BOOT_FAIL": "a node of job {job} did not boot",
}


_STATES = {"DUE TO TIME LIMIT": "TIMEOUT", "DUE TO NODE FAILURE": "NODE_FAIL", "DUE TO PREEMPTION": "PREEMPTED"}


@dataclass(frozen=True)
class JobState:
    """State of a job: a line of squeue."""

    state: str
    """Slurm's name: `PENDING`, `RUNNING`, `TIMEOUT`, ...; `UNKNOWN` once it has forgotten the job."""
    start: str = ""
    """Actual or expected start: `2026-11-21T16:06:08`, or `N/A`."""
    partition: str = ""
    nodes: str = ""
    reason: str = ""

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "STOPPED")

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    def why_never(self) -> str:
        """Why the job will never start; empty if it may."""
        if self.state != "PENDING":
            return ""
        if self.reason in _NEVER:
            return f"{_NEVER[self.reason]} ({self.reason})"
        # Slurm's reasons about accounts and partitions are sentences
        return self.reason if self.reason.startswith(("Job's account", "Job's QOS")) else ""

    def why_it_ended(self, messages: str) -> str:
        """Why Slurm ended it, with placeholders for `{job}` and its time `{limit}`; empty if unknown.

        messages: srun's output, which has the reason first.
        """
        ending = next((state for words, state in _STATES.items() if words in messages), self.state)
        if ending == "COMPLETING" and "CANCELLED AT" in messages:  # its processes may take a while to end
            ending = "CANCELLED"
        return _ENDINGS.get(ending, "")

    def why_it_waits(self) -> str:
        """`Priority, other jobs come first`; empty until Slurm has considered the job."""
        if self.reason == "None":
            return ""
        if self.state != "PENDING":
            return {"CONFIGURING": "its nodes are started"}.get(self.state, self.state.lower())
        known = _REASONS.get(self.reason.split(",")[0].strip("()"), "")
        return f"{self.reason}, {known}" if known else self.reason


def environment() -> dict[str, str]:
    """Environment for Slurm's clients: a notebook that itself runs in a job must not pass on its number of nodes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SRUN_"))}
    if "SLURM_CONF" in os.environ:
        kept["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return {**kept, "SLURM_TIME_FORMAT": "standard"}


def submitting_environment() -> dict[str, str]:
    """Environment for sbatch, which stores it with the job: without any secrets of the notebook."""
    wanted = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "SLURM_CONF", "SLURM_TIME_FORMAT")
    return {n: v for n, v in environment().items() if n in wanted or n.startswith("SBATCH_")}


def require_slurm() -> None:
    """Raise `InvalidJob` if Slurm's commands are not installed."""
    missing = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        raise InvalidJob(
            f"Slurm is not installed here: there is no {missing[0]}. Start Jupyter on a machine from which you can "
            "submit jobs, or use %cluster local or %cluster virtual"
        )


def ask(*command: str, variables: Mapping[str, str] | None = None) -> str:
    """Output of a client. Raises `InvalidJob` with the client's own message if it fails.

    variables: its environment; None for this process's own, as far as a client should have it.
    """
    done = subprocess.run(
        command,
        env=environment() if variables is None else variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_LIMIT_SECONDS,
    )
    if done.returncode != 0:
        raise InvalidJob(f"{command[0]} failed: {said(done.stderr)}")
    return done.stdout


def said(text: str) -> str:
    """A client's messages without its name, in one line."""
    lines = [line.partition(": ")[2].removeprefix("error: ").removeprefix("fatal: ") for line in text.splitlines()]
    message = "; ".join(dict.fromkeys(line.removeprefix("Batch job submission failed: ") for line in lines if line))
    if "configuration source" in message or "configuration file" in message:
        return f"Slurm's commands are installed here, but do not know of a cluster: {message.split('; ')[-1]}"
    return message or "it gave no reason"


def job_state(job_id: str) -> JobState:
    """State of the job. `UNKNOWN` some minutes after its end, when Slurm's controller has forgotten it."""
    try:
        lines = ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", f"--format={_FIELDS}").splitlines()
    except InvalidJob as error:
        if "Invalid job id" in str(error):
            return JobState("UNKNOWN")
        raise
    return JobState(*lines[0].split("|", 4)) if lines else JobState("UNKNOWN")


def partitions() -> str:
    """The partitions: `lab: 2 nodes of 4 CPUs, gpu:2, time limit 30:00`. Raises `InvalidJob` as `ask` does."""
    rows = ask("sinfo", "--noheader", "--format=%R|%D|%c|%G|%l").splitlines()
    descriptions = []
    for row in dict.fromkeys(rows):
        name, nodes, cpus, gres, limit = row.split("|")
        gpus = "" if gres == "(null)" else f", {gres}"
        descriptions.append(f"{name}: {nodes} node{'s' * (nodes != '1')} of {cpus} CPUs{gpus}, time limit {limit}")
    return "; ".join(descriptions)


def place_in_queue(job_id: str, partition: str) -> int:
    """Position among the partition's waiting jobs, by priority, from 1; 0 if it is not shown."""
    waiting = ask(
        "squeue", "--noheader", "--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%i"
    ).split()
    return waiting.index(job_id) + 1 if job_id in waiting else 0


def node_names(nodes: str) -> list[str]:
    """Names of the nodes in `node[1-2]`."""
    return ask("scontrol", "show", "hostnames", nodes).split()


def node_address(name: str) -> str:
    """An address at which other nodes reach the node, the one that Slurm itself uses."""
    shown = ask("scontrol", "show", "node", name, "--oneliner")
    address = next((word.partition("=")[2] for word in shown.split() if word.startswith("NodeAddr=")), name)
    try:
        return socket.gethostbyname(address)
    except OSError:
        # only nodes can resolve that name
        return address


def node_troubles(nodes: str) -> dict[str, str]:
    """Slurm's reasons for nodes that do not work: `{"node2": "drained, disk is full"}`."""
    rows = ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E").splitlines()
    troubles = {}
    for row in rows:
        name, state, reason = row.split("|", 2)
        if state.endswith("*") or reason == "Not responding":
            troubles[name] = "not responding"
        elif state.startswith(("down", "drain", "fail")):
            troubles[name] = f"{state}, {reason}"
    return troubles
