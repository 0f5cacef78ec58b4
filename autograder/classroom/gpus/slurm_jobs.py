"""Jobs of a Slurm cluster, from squeue and scontrol. No text that a user chooses is read, such as a job's name."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Collection, Iterable

from autograder.classroom.gpus.jobs import Job, SchedulerFailed

_FIELDS = ("JobID", "UserName", "State", "StartTime", "EndTime", "TimeLimit", "NumTasks", "NumNodes")
_REQUESTS = ("tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task")
_FORMAT = ",".join(f"{field}:|" for field in [*_FIELDS, *_REQUESTS])
_LIMIT_SECONDS = 30.0
_GPUS = re.compile(r"\bgpu(?::[^,:()]+)?:(\d+)")


class SlurmFailed(SchedulerFailed):
    """A command of Slurm's has failed. The message is Slurm's."""


def parse(lines: Iterable[str]) -> list[Job]:
    """Return the jobs of squeue's lines."""
    jobs = []
    for line in lines:
        id, user, state, start, end, limit, tasks, nodes, *requests = line.strip().split("|")[:12]
        counts = (1, _most(nodes), _most(nodes), _most(tasks))
        asked = max(_number_in(request) * count for request, count in zip(requests, counts, strict=True))
        jobs.append(Job(id, user, state, _time(start), _time(end), duration(limit), _most(tasks), asked))
    return jobs


def jobs_of(users: Collection[str]) -> list[Job]:
    """Return all jobs of these users, also those that have just ended. Raises `SlurmFailed`."""
    command = ("squeue", "--noheader", "--all", "--array", "--states=all", f"--Format={_FORMAT}")
    return [job for job in parse(_ask(*command).splitlines()) if job.user in users]


def allocated_gpus(job_id: str) -> int:
    """Return how many GPUs Slurm has given to a job that has not ended long ago. Raises `SlurmFailed`."""
    return gpus_in(_ask("scontrol", "show", "job", "--details", job_id))


def gpus_in(details: str) -> int:
    """Return the number of GPUs in scontrol's details of one job that holds or has held nodes.

    A job's name can look like the line with the number. The highest counts, so that this never lowers it.
    """
    lines = re.findall(r"^\s*JOB_GRES=(.*)$", details, re.MULTILINE)
    return max(map(_number_in, lines), default=0)


def cancel(job_id: str) -> None:
    """End a job. Raises `SlurmFailed`."""
    _ask("scancel", job_id)


def shorten(job_id: str, minutes: int) -> None:
    """Lower the time limit of a job. Raises `SlurmFailed`."""
    _ask("scontrol", "update", f"JobId={job_id}", f"TimeLimit={minutes}")


def duration(text: str) -> float:
    """Return the seconds of `1-02:03:04`, `2:03:04` or `3:04`; infinite for `UNLIMITED` and other words."""
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts):
        return math.inf
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return 86400 * int(days or 0) + seconds


def _number_in(gres: str) -> int:
    """Return the GPUs in `gres:gpu:2`, `gpu:a100:4(IDX:0-3)`, or `gres:gpu`, which is one."""
    numbers = [int(number) for number in _GPUS.findall(gres)]
    return sum(numbers) if numbers else int(re.search(r"\bgpu\b", gres) is not None)


def _most(count: str) -> int:
    """Return the number in `4`, and the larger one in `2-4`, as of a job that waits for nodes."""
    return max(map(int, re.findall(r"\d+", count)), default=1)


def _time(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _ask(*command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SQUEUE_"))}
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    try:
        done = subprocess.run(
            command,
            env={**environment, "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SlurmFailed(f"{command[0]}: {problem}") from None
    if done.returncode:
        raise SlurmFailed(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout
