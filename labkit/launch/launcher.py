"""The process that runs a detached job: `python -m labkit.launch.launcher FOLDER`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from labkit.clusters.forkserver import starting
from labkit.launch.detached import DetachedJob

_OF_BATCH_JOB = ("SLURM_", "SLURMD_")


def main(folder: Path) -> int:
    """Run the job as the shell that launched it would have done; record its exit status, and return it."""
    job = DetachedJob(folder)
    status = 1
    try:
        status = _run(job)
    except Exception:
        traceback.print_exc()
    finally:
        job.end(status)
    return status


def _run(job: DetachedJob) -> int:
    record = job.record
    in_batch_job: bool = record["in_batch_job"]
    os.chdir(record["directory"])
    if in_batch_job:
        own = {name: value for name, value in os.environ.items() if name.startswith(_OF_BATCH_JOB)}
        os.environ.update({**job.take_environment(), **own})
    elif record["cluster"] == "local":
        # first of all: it imports torch while this process does
        starting.begin()
    from labkit.clusters import InvalidJob
    from labkit.launch.running import run_tasks
    from labkit.launch.tasks import Task

    try:
        return run_tasks([Task.from_json(data) for data in record["tasks"]], in_batch_job)
    except InvalidJob as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
