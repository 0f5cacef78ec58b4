"""Start detached jobs: their folders, then a launcher as a process of this machine, or as a batch job."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from labkit.clusters import Cluster
from labkit.clusters.cluster import BatchCluster
from labkit.command_line.commands import CommandError
from labkit.launch.detached import DetachedJob, jobs_folder
from labkit.launch.tasks import Task
from labkit.linux.files import replace_text

_LAUNCHER = ["-P", "-m", "labkit.launch.launcher"]


def start(tasks: Sequence[Task], cluster: Cluster, program: str, command: Sequence[str], array: str | None) -> str:
    """Start a job, or an array of them, and return its name.

    program: its name without numbers. command: words of the command, for people. array: indexes as sbatch takes them,
    one job for each. Raises `CommandError` or `InvalidJob` if it cannot be started.
    """
    if array is not None and not isinstance(cluster, BatchCluster):
        raise CommandError(f"--array: {cluster.kind} clusters have no arrays of jobs; start one job after the other")
    chosen = [None] if array is None else list(indexes(array))
    name, jobs = _new_folders(program, chosen)
    data = {
        "command": shlex.join(word for word in command if word != "--detach"),
        "cluster": cluster.kind,
        "directory": os.getcwd(),
        "host": socket.gethostname(),
        "launched": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "in_batch_job": isinstance(cluster, BatchCluster),
    }
    try:
        for job, index in zip(jobs, chosen, strict=True):
            own = tasks if index is None else [task.with_index(index) for task in tasks]
            # other shells list jobs at any time
            replace_text(job.folder / "job.json", json.dumps({**data, "tasks": [task.to_json() for task in own]}))
        if isinstance(cluster, BatchCluster):
            _submit(cluster, tasks, name, jobs, array)
        else:
            _start_process(jobs[0])
    except BaseException:
        for job in jobs:
            job.forget()
        raise
    return name


def indexes(array: str) -> Iterator[int]:
    """Yield the indexes of an array as sbatch writes them: `0-3`, `1,5,7`, `0-8:2`, with a limit as in `0-99%4`."""
    for part in array.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::([1-9]\d*))?)?", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise CommandError(f"--array: expected indexes such as 0-3 or 1,5,7, got {array!r}")
        yield from range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))


def _new_folders(program: str, chosen: Sequence[int | None]) -> tuple[str, list[DetachedJob]]:
    parent = jobs_folder()
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.]", "_", program)
    numbers = [re.fullmatch(rf"{re.escape(stem)}-(\d+)(_\d+)?", folder.name) for folder in parent.iterdir()]
    number = 1 + max((int(match[1]) for match in numbers if match), default=0)
    while True:
        name = f"{stem}-{number}"
        folders = [parent / (name if index is None else f"{name}_{index}") for index in chosen]
        try:
            for folder in folders:
                folder.mkdir(mode=0o700)
        except FileExistsError:  # another shell has been faster
            number += 1
            continue
        return name, [DetachedJob(folder) for folder in folders]


def _start_process(job: DetachedJob) -> None:
    with open(job.folder / "lock", "x") as lock, open(job.output, "x") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the launcher inherits it
        process = subprocess.Popen(
            [sys.executable, *_LAUNCHER, str(job.folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
        (job.folder / "pid").write_text(str(process.pid))


def _submit(
    cluster: BatchCluster, tasks: Sequence[Task], name: str, jobs: Sequence[DetachedJob], array: str | None
) -> None:
    folder = jobs[0].folder if array is None else jobs[0].folder.parent / f"{name}_%a"
    command = [*_LAUNCHER, str(folder)]
    for job in jobs:
        with open(job.folder / "environment.json", "x", opener=_private) as file:
            json.dump(dict(os.environ), file)
    batch_id = cluster.submit([task.job for task in tasks], command, name, folder / "output", array)
    for job in jobs:
        suffix = "" if array is None else f"_{job.name.rpartition('_')[2]}"
        (job.folder / "batch_id").write_text(batch_id + suffix)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
